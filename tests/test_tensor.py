"""The handle itself: how it behaves where it differs from an ordinary tensor by necessity."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from safemodule import freeze, freeze_inputs, record
from safemodule._state import Root, View, handle_and_root
from safemodule._tensor import FrozenTensor, make_handle, make_plain
from tests.helpers import Caller, forward_of, is_plain


def test_it_is_a_real_alias():
    """Same memory, same version counter, in the graph."""
    x = torch.ones(2, requires_grad=True) * 1
    h = freeze(x)
    assert type(h) is FrozenTensor
    assert torch._C._is_alias_of(h, x)
    with torch.no_grad():
        x.add_(1)
    assert h.tolist() == [2, 2]
    assert h.requires_grad


def test_state_starts_small():
    """Until something happens a handle carries a tuple; the first write makes a Root."""
    seen = []

    @freeze_inputs
    def forward(x):
        seen.append(type(x._safemodule))
        x.add_(1)
        seen.append(type(x._safemodule))
        seen.append(type(x[0]._safemodule))

    forward(torch.zeros(2))
    assert seen == [tuple, Root, View]


def test_operations_give_plain_tensors():
    """Only what shares memory with an input is a handle."""

    def forward(x):
        plain = [
            x + 1, x.clone(), x * x, x.sum(), x[[0]], x[x > 0], x.to(torch.float64), torch.cat([x, x]),
            x.contiguous().t().contiguous(), x.new_zeros(2), torch.zeros_like(x), x.float() + 0,
        ]  # fmt: skip
        handles = [
            x[0],
            x.t(),
            x.view(-1),
            x.detach(),
            x.data,
            x.contiguous(),
            x.float(),
            x.reshape(2, 2),
        ]
        return [type(t) for t in plain], [type(t) for t in handles]

    plain, handles = forward_of(forward)(torch.ones(2, 2))
    assert set(plain) == {torch.Tensor}
    assert set(handles) == {FrozenTensor}


def test_a_no_op_returns_the_handle_itself():
    """As PyTorch returns its argument."""

    def forward(x):
        return [
            x.to(torch.float32) is x,
            x.contiguous() is x,
            x.float() is x,
            x.cpu() is x,
            +x is x,
        ]

    x = torch.ones(2)
    assert forward_of(forward)(x) == forward(x)


def test_fast_attributes_agree_with_torch():
    """The properties that bypass torch's way say the same."""
    for x in (torch.zeros(2, 3), torch.zeros((), dtype=torch.int8), torch.zeros(1, device="meta")):
        h = freeze(x)
        assert (h.shape, h.dtype, h.device, h.ndim) == (x.shape, x.dtype, x.device, x.ndim)
        assert type(h.shape) is torch.Size


def test_comparison_hash_and_iteration():
    """Identity semantics."""

    def forward(x):
        assert x in {x: 1}
        assert hash(x) == id(x)
        assert (x == x).all()
        assert [type(row) for row in x] == [FrozenTensor] * 2
        a, b = x
        (a + b).sum()
        return list(map(float, x[0]))

    assert forward_of(forward)(torch.ones(2, 2)) == [1, 1]


def test_conversion_to_python():
    """bool, int, float, index, complex, len."""

    def forward(x):
        return bool(x[0] > 0), int(x[0]), float(x[1]), complex(x[1]), len(x), [5, 6, 7][x[0].long()]

    assert forward_of(forward)(torch.tensor([1.0, 2.5])) == (True, 1, 2.5, 2.5 + 0j, 2, 6)


def test_dir_and_missing_attribute():
    """`dir(x)` works; a missing attribute names a Tensor."""

    def forward(x):
        assert "add_" in dir(x)
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nope'"):
            x.nope
        return hasattr(x, "nope")

    assert forward_of(forward)(torch.ones(1)) is False


def test_grad_reads_and_sets_the_callers():
    """`x.grad` of an unwritten leaf."""
    x = torch.ones(2, requires_grad=True)

    def forward(h):
        assert h.grad is None
        (h * 2).sum().backward()
        assert h.grad is x.grad
        h.grad = None
        assert x.grad is None
        h.grad = torch.full((2,), 7.0)
        del h.grad
        return x.grad

    assert forward_of(forward)(x) is None


def test_is_leaf_and_base():
    """A handle of a leaf says leaf; a view's base is the handle."""

    def forward(x, y):
        assert x.is_leaf
        assert not y.is_leaf
        assert x[0]._base is x
        assert x._base is None
        assert x[0][0]._base is x
        return True

    x = torch.ones(2, 2, requires_grad=True)
    assert forward_of(forward)(x, x * 1)


def test_parameter_is_a_parameter():
    """`isinstance(x, nn.Parameter)` as in a plain module."""
    p = nn.Parameter(torch.ones(1))

    def forward(x, y):
        return isinstance(x, nn.Parameter), isinstance(y, nn.Parameter)

    assert forward_of(forward)(p, p * 1) == (True, False)


def test_a_handle_without_our_attributes_is_a_fresh_handle():
    """C++ makes such (unpacked saved tensors): never an error."""
    h = torch.ones(2).view_as(torch.ones(2))
    h.__class__ = FrozenTensor
    assert (h * 2).tolist() == [2, 2]
    assert h[0].tolist() == 1
    assert repr(h) == "tensor([1., 1.])"
    h.add_(1)
    assert h.tolist() == [2, 2]
    assert isinstance(handle_and_root(h)[1], Root)


def test_make_plain():
    """The same object, an ordinary tensor."""
    h = freeze(torch.ones(2))
    plain = make_plain(h)
    assert plain is h
    assert is_plain(plain)
    plain.add_(1)


def test_make_handle_of_a_view_and_of_a_handle():
    """Any strided tensor, plain or a handle."""
    plan = handle_and_root(freeze(torch.ones(1)))[1].plan
    base = torch.ones(4)
    first = make_handle(base[:2], plan, None, "x")
    second = make_handle(first, plan, None, "y")
    second.add_(1)
    first.add_(5)
    assert (base.tolist(), first.tolist(), second.tolist()) == ([1] * 4, [6, 6], [2, 2])


def test_subclass_cannot_be_told_from_outside():
    """`torch.is_tensor`, `isinstance`, `torch.overrides` checks."""

    def forward(x):
        return isinstance(x, torch.Tensor), torch.is_tensor(x), torch.is_floating_point(x)

    assert forward_of(forward)(torch.ones(1)) == (True, True, True)


def test_copy_of_handles():
    """`copy.copy` aliases, `copy.deepcopy` copies; both are harmless to the caller."""

    def forward(x):
        a, b = copy.copy(x), copy.deepcopy(x)
        b.add_(1)
        a.add_(5)
        return x * 1, a * 1, b

    x = torch.zeros(1)
    caller = Caller(x)
    assert [t.tolist() for t in forward_of(forward)(x)] == [[5], [5], [1]]
    caller.check()


def test_operations_with_another_subclass():
    """Mixed calls run as the other class wants, and what they write is protected."""

    class Loud(torch.Tensor):
        calls = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Loud.calls.append(func.__name__)
            assert FrozenTensor not in types
            return super().__torch_function__(func, types, args, kwargs or {})

    def forward(x, y):
        z = x + y
        x.add_(y)
        return z, x

    x, y = torch.ones(2), torch.ones(2).as_subclass(Loud)
    caller = Caller(x)
    with record() as log:
        z, out = forward_of(forward)(x, y)
    caller.check()
    assert type(z) is Loud
    assert out.tolist() == [2, 2]
    assert {"add", "add_"} <= set(Loud.calls)
    assert [(m.op, m.argument) for m in log] == [("add_", "x")]


def test_every_in_place_method_is_a_write_or_refused():
    """No method whose name ends in one underscore reaches the caller, whatever its arguments."""
    values = {
        "default": (), "number": (1.0,), "tensor": (torch.ones(3),), "two": (torch.ones(3), 1.0),
        "index": (0, torch.tensor([0])), "fill": (0, torch.tensor([0]), 1.0), "ints": (0, 0),
    }  # fmt: skip
    names = [n for n in dir(torch.Tensor) if n.endswith("_") and not n.endswith("__")]
    assert len(names) > 150
    ran = set()
    for name in names:
        for args in values.values():
            x = torch.full((3,), 0.5)
            caller = Caller(x)

            def forward(h, name=name, args=args):
                try:
                    getattr(h, name)(*args)
                    ran.add(name)
                except Exception:
                    return

            freeze_inputs(forward)(x)
            caller.check()
    assert len(ran) >= 100


def test_the_class_defines_no_more_than_it_must():
    """Each method of ours on the class is one that torch does not route, or is measured hot."""
    mine = {
        n for n, v in vars(FrozenTensor).items() if inspect.isfunction(v) or isinstance(v, property)
    }
    assert {"set_", "as_subclass", "__repr__", "__reduce_ex__", "__deepcopy__"} <= mine
    assert not {n for n in mine if n.endswith("_") and not n.startswith("_")} - {"set_"}


def test_gradient_hook_of_a_leaf_of_its_own():
    """It runs when the gradient of that leaf is there, in the same call."""
    seen = []

    def forward(x):
        leaf = x.detach().requires_grad_()
        leaf.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
        (leaf * 2).sum().backward()
        return leaf.grad

    assert forward_of(forward)(torch.ones(2)).tolist() == [2, 2]
    assert seen == [[2, 2]]


def test_no_parameter():
    """Saying so of a handle changes nothing."""

    def forward(x):
        x._is_param = False
        assert type(x) is FrozenTensor
        return x

    x = torch.ones(2)
    assert forward_of(forward)(x) is x


def test_swapped_by_torch():
    """`torch.utils.swap_tensors` puts another tensor in the handle's place."""

    def forward(x):
        x.add_(1)
        x[:1].mul_(1)
        other = torch.full((2,), 5.0)
        torch.utils.swap_tensors(x, other)
        return x, other

    x = torch.zeros(2)
    out = forward_of(forward)(x)
    assert [t.tolist() for t in out] == [[5, 5], [1, 1]]
    assert x.tolist() == [0, 0]


def test_deep_copy_of_a_result():
    """Refused as for a plain tensor in a graph, written or not."""

    def forward(x, write):
        if write:
            x.add_(1)
        return copy.deepcopy(x)

    for write in (False, True):
        with pytest.raises(RuntimeError, match="deepcopy"):
            forward_of(forward)(torch.ones(2, requires_grad=True) * 1, write)


def test_swapped_while_an_alias_is_alive():
    """The family goes with the object that has its memory now."""

    def forward(x):
        x.add_(1)
        alias = x.detach()
        other = torch.full((2,), 5.0)
        torch.utils.swap_tensors(x, other)
        x.add_(1)
        return x, other, alias

    x = torch.zeros(2)
    out = forward_of(forward)(x)
    assert [t.tolist() for t in out] == [t.tolist() for t in forward(x.clone())]
    assert x.tolist() == [0, 0]


CALLS = {
    "a read": lambda x: x.add("s"),
    "a function": lambda x: torch.mul(x, object()),
    "a view": lambda x: x.view("s"),
    "a list": lambda x: torch.stack([x, "s"]),
    "a write": lambda x: x.add_("s"),
    "geometry": lambda x: x.unsqueeze_("s"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_torch_refuses(name):
    """The error is torch's own, and nothing has changed."""
    messages = []

    def forward(x):
        with pytest.raises(TypeError) as caught:
            CALLS[name](x)
        messages.append(str(caught.value))
        return x

    x = torch.zeros(2)
    with record() as log:
        assert forward_of(forward)(x) is x
    assert list(log) == []
    forward(x)
    assert messages[0] == messages[1]


def test_a_function_without_a_hash():
    """Objects that ask for overrides need not be hashable."""
    from torch.overrides import handle_torch_function

    class Twice:
        __hash__ = None

        def __call__(self, x):
            return x * 2

    twice = Twice()
    out = freeze_inputs(lambda x: handle_torch_function(twice, (x,), x))(torch.ones(1))
    assert out.tolist() == [2]


def test_out_is_seen_however_often_the_function_was_called_without():
    """The way of a function is remembered; a tensor to write is not overlooked."""

    @freeze_inputs
    def forward(x, y):
        for _ in range(3):
            torch.sin(x)
            torch.flatten(x)
        torch.sin(x, out=x)
        torch.add(y, 1, out=y)
        return x, y

    x, y = torch.ones(2), torch.ones(2)
    with record() as log:
        out, other = forward(x, y)
    assert x.tolist() == y.tolist() == [1, 1]
    assert torch.equal(out, torch.ones(2).sin())
    assert other.tolist() == [2, 2]
    assert [(m.op, m.argument) for m in log] == [("sin(out=)", "x"), ("add(out=)", "y")]


def test_wrong_arguments_are_torchs_error():
    """Whatever way the function goes."""
    h = freeze(torch.zeros(2))
    for call in (lambda: h.add("s"), lambda: torch.add(h, "s"), lambda: h.view("s")):
        with pytest.raises(TypeError):
            call()


def test_error_of_a_library_function():
    """A TypeError of its own comes out as it is, whether it is the first call or a later one."""

    def raises(x):
        if has_torch_function((x,)):
            return handle_torch_function(raises, (x,), x)
        raise TypeError("mine")

    def forward(x):
        for _ in range(2):
            with pytest.raises(TypeError, match="mine"):
                raises(x)
        return x

    x = torch.zeros(2)
    assert forward_of(forward)(x) is x

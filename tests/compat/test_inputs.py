"""Inputs of every kind: unusual tensors, subclasses, containers of other libraries, odd forwards."""

from __future__ import annotations

import asyncio
import functools

import pytest
import torch
from torch import nn

from safemodule import InputMutationError, SafeModule, freeze_inputs, mode, record
from tests.helpers import Caller, assert_plain, compare_with_clones, same

# Layouts in prototype or beta state, and quantized tensors, which torch means to move elsewhere.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:.*quantize.* deprecated"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization"),
    pytest.mark.filterwarnings("ignore:.torch.jit"),
]


@freeze_inputs
def double(x):
    """Read, write, read."""
    y = x + x
    x.mul_(2)
    return y, x


# -- parameters and buffers ------------------------------------------------------------------------


@pytest.mark.parametrize("make", [nn.Parameter, nn.Buffer, lambda x: x], ids=["p", "b", "t"])
def test_parameters_and_buffers(make):
    """Parameters and buffers that are passed as arguments are protected like any tensor."""

    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = make(torch.ones(3))

    owner = Owner()
    caller = Caller(owner.weight)
    y, x = double(owner.weight)
    same(y.detach(), torch.full((3,), 2.0))
    same(x.detach(), torch.full((3,), 2.0))
    caller.check()
    if isinstance(owner.weight, nn.Parameter):
        (y.sum() + x.sum()).backward()
        same(owner.weight.grad, torch.full((3,), 4.0))


def test_own_parameters_and_buffers_are_not_inputs():
    """What a module owns it may write: running statistics, a counter, a cache."""

    class Counts(SafeModule):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            self.steps += 1
            return self.norm(x)

    module = Counts()
    with record() as log:
        module(torch.randn(4, 3))
    assert not log
    assert module.steps == 1
    assert module.norm.num_batches_tracked == 1


# -- tensors of other kinds ------------------------------------------------------------------------


def test_fake_tensors():
    """FakeTensors are cloned on entry, and stay fake."""
    from torch._subclasses import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3)
        y, z = double(x)
        assert type(y) is type(z) is FakeTensor
        assert x._version == 0


def test_meta_tensors():
    """Meta tensors have no memory, but a version."""
    x = torch.ones(3, device="meta")
    y, z = double(x)
    assert y.is_meta
    assert z.is_meta
    assert x._version == 0
    assert_plain((y, z))


SPARSE = {
    "coo": lambda: torch.eye(3).to_sparse_coo(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors(layout):
    """Sparse tensors are cloned on entry: written values stay inside."""
    x = SPARSE[layout]()
    values = (x.coalesce() if layout == "coo" else x).values().clone()

    @freeze_inputs
    def forward(x):
        y = x.to_dense() * 1
        x.mul_(3)
        return y, x

    y, out = forward(x)
    same(y, x.to_dense())
    same(out.to_dense(), 3 * x.to_dense())
    assert out.layout == x.layout
    same((x.coalesce() if layout == "coo" else x).values(), values)


def test_sparse_gradients():
    """Gradients flow through the clone of a sparse input."""
    x = torch.eye(3).to_sparse_coo().requires_grad_()
    weight = torch.arange(9.0).reshape(3, 3)
    freeze_inputs(lambda x: torch.sparse.mm(x, weight).sum())(x).backward()
    assert x.grad is not None


def test_nested_tensors():
    """Jagged nested tensors keep their layout, and the caller's stays."""
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    before = x.values().clone()

    @freeze_inputs
    def forward(x):
        y = x * 2
        x.mul_(3)
        return y, x

    y, out = forward(x)
    assert y.layout == torch.jagged
    same(out.values(), torch.full((6, 3), 3.0))
    same(x.values(), before)


def test_quantized_tensors():
    """Quantized tensors are cloned on entry."""
    x = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)

    other = torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)
    out = freeze_inputs(lambda x: x.copy_(other))(x)
    same(out.dequantize(), torch.zeros(3))
    same(x.dequantize(), torch.ones(3))


@pytest.mark.parametrize("kind", ["conj", "neg", "complex"])
def test_lazily_conjugated_and_negated_views(kind):
    """The bits of a view that is conjugated or negated when it is read."""

    def make():
        z = torch.complex(torch.arange(3.0), torch.ones(3))
        if kind == "neg":
            return (z.conj().imag,)
        return (z.conj() if kind == "conj" else z,)

    outcome = compare_with_clones(double, double.__wrapped__, make, backward=False)
    assert outcome.writes[0].bytes_copied in (12, 24)


@pytest.mark.parametrize("inside", [False, True])
def test_inference_tensors(inside):
    """Tensors made in inference mode have no version; they are protected in and out of it."""
    with torch.inference_mode():
        x = torch.ones(3)
    caller = Caller(x)
    with torch.inference_mode(mode=inside):
        y, z = double(x)
    same(y, torch.full((3,), 2.0))
    same(z, torch.full((3,), 2.0))
    caller.check()


def test_ordinary_tensors_in_inference_mode():
    """A tensor made outside, written in inference mode."""
    x = torch.ones(3, requires_grad=True)
    caller = Caller(x)
    with torch.inference_mode():
        _, z = double(x)
    same(z, torch.full((3,), 2.0))
    caller.check()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_empty_and_scalar_tensors(shape):
    """No elements, or no dimensions."""
    compare_with_clones(
        double, lambda x: (x + x, x * 2), lambda: (torch.ones(shape, requires_grad=True),)
    )


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.complex64]
)
def test_dtypes(dtype):
    """Every family of dtypes."""

    def forward(x):
        y = x.clone()
        x.fill_(1)
        x[0] = 0
        return y, x

    compare_with_clones(
        freeze_inputs(forward),
        forward,
        lambda: (torch.tensor([1, 0, 1]).to(dtype),),
        backward=False,
    )


# -- subclasses of users ---------------------------------------------------------------------------


class Boxes(torch.Tensor):
    """A subclass in the manner of `tv_tensors`: operations return plain tensors."""

    format: str

    @staticmethod
    def make(data, form):
        """Return boxes."""
        boxes = torch.as_tensor(data).as_subclass(Boxes)
        boxes.format = form
        return boxes

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach):
            source = next(a for a in args if isinstance(a, Boxes))
            return Boxes.make(out, source.format)
        if func is torch.Tensor.mul_:
            return args[0]
        return out


def test_a_subclass_keeps_its_type():
    """A user's subclass arrives as itself, with its attributes, and a write stays inside."""
    seen = []

    @freeze_inputs
    def forward(boxes):
        seen.append((type(boxes), boxes.format))
        boxes.mul_(2)
        return boxes

    boxes = Boxes.make(torch.ones(2, 4), "xyxy")
    out = forward(boxes)
    assert seen == [(Boxes, "xyxy")]
    assert type(out) is Boxes
    same(boxes.as_subclass(torch.Tensor), torch.ones(2, 4))
    same(out.as_subclass(torch.Tensor), torch.full((2, 4), 2.0))


def test_an_unwritten_subclass_comes_back_as_itself():
    """Identity is kept for a subclass too."""
    boxes = Boxes.make(torch.ones(2, 4), "xyxy")
    assert freeze_inputs(lambda b: b)(boxes) is boxes


def test_a_handle_meets_a_subclass():
    """One operation on a handle and on a user's subclass: the subclass decides."""

    @freeze_inputs
    def forward(x, boxes):
        y = x + boxes
        x.add_(boxes)
        return y, x

    x, boxes = torch.ones(2, 4), Boxes.make(torch.ones(2, 4), "xyxy")
    caller = Caller(x)
    y, out = forward(x, boxes)
    same(y.as_subclass(torch.Tensor), torch.full((2, 4), 2.0))
    same(out.as_subclass(torch.Tensor), torch.full((2, 4), 2.0))
    caller.check()


class Logged(torch.Tensor):
    """A wrapper subclass with `__torch_dispatch__`, as quantization libraries have."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(t):
            return t.inner if isinstance(t, Logged) else t

        from torch.utils._pytree import tree_map

        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        if func is torch.ops.aten.mul_.Tensor:
            return args[0]
        return Logged(out) if isinstance(out, torch.Tensor) else out


def test_a_wrapper_subclass():
    """A subclass that holds another tensor is cloned by its own rules."""
    inner = torch.ones(3)
    x = Logged(inner)
    y, z = double(x)
    assert type(y) is type(z) is Logged
    same(inner, torch.ones(3))
    same(z.inner, torch.full((3,), 2.0))


# -- containers of other libraries -----------------------------------------------------------------


def test_tensordict():
    """A TensorDict of the caller: a written entry and a new one stay inside."""
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed")

    @freeze_inputs
    def forward(td):
        td["a"].mul_(2)
        td["b"] = td["a"] + 1
        return td["b"], td

    td = tensordict.TensorDict({"a": torch.ones(2, 3)}, batch_size=[2])
    b, out = forward(td)
    same(b, torch.full((2, 3), 3.0))
    assert isinstance(out, tensordict.TensorDict)
    assert sorted(out.keys()) == ["a", "b"]
    assert list(td.keys()) == ["a"]
    same(td["a"], torch.ones(2, 3))


def test_model_output():
    """A `ModelOutput` of transformers, in and out."""
    outputs = pytest.importorskip(
        "transformers.modeling_outputs", reason="transformers is not installed"
    )

    @freeze_inputs
    def forward(out):
        out.logits.sub_(1)
        out.loss = out.logits.sum()
        assert out["logits"] is out.logits
        return out

    logits = torch.ones(2, 3, requires_grad=True)
    given = outputs.CausalLMOutput(logits=logits * 1)
    caller = Caller(given.logits)
    out = forward(given)
    assert type(out) is outputs.CausalLMOutput
    assert_plain(out.logits)
    same(out.loss.detach(), torch.tensor(0.0))
    same(out.to_tuple()[0].detach(), torch.zeros(2, 3))
    assert given.loss is None
    assert list(given) == ["logits"]
    caller.check()


def test_batch_encoding():
    """A `BatchEncoding` of transformers: a UserDict with methods."""
    base = pytest.importorskip(
        "transformers.tokenization_utils_base", reason="transformers is not installed"
    )

    @freeze_inputs
    def forward(batch):
        batch["attention_mask"][:, 0] = 0
        return batch["attention_mask"].sum(), batch.keys()

    batch = base.BatchEncoding({"attention_mask": torch.ones(2, 3, dtype=torch.long)})
    caller = Caller(batch["attention_mask"])
    total, keys = forward(batch)
    assert total == 4
    assert list(keys) == ["attention_mask"]
    caller.check()


class Graph:
    """An object of attributes, as PyG's `Data` is: passed through as it is."""

    def __init__(self, x):
        self.x = x


def test_objects_of_attributes_pass_through():
    """An unknown object arrives as it is; a write to its tensors reaches the caller.

    Guard what receives the tensors themselves, or register the class with PyTorch's pytree.
    """
    data = Graph(torch.ones(3))
    seen = []

    @freeze_inputs
    def forward(data):
        seen.append(data)
        data.x.add_(1)
        return data.x

    with record() as log:
        forward(data)
    assert seen[0] is data
    assert not log
    same(data.x, torch.full((3,), 2.0))


class Registered(Graph):
    """The same, registered with PyTorch's pytree."""


def test_registered_objects_are_protected():
    """`torch.utils._pytree.register_pytree_node` makes a class known."""
    pytree = torch.utils._pytree
    if Registered not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            Registered, lambda data: ([data.x], None), lambda items, _: Registered(items[0])
        )
    data = Registered(torch.ones(3))
    caller = Caller(data.x)
    out = freeze_inputs(lambda data: data.x.add_(1))(data)
    same(out, torch.full((3,), 2.0))
    caller.check()


# -- odd forwards ----------------------------------------------------------------------------------


def test_partial_forwards():
    """A forward that is a `functools.partial`, assigned to an instance or decorated."""

    def forward(x, factor):
        return x.mul_(factor)

    guarded = freeze_inputs(functools.partial(forward, factor=3.0))
    compare_with_clones(guarded, lambda x: x * 3, lambda: (torch.ones(3, requires_grad=True),))

    class Net(SafeModule):
        def forward(self, x):
            return x

    module = Net()
    module.forward = functools.partial(forward, factor=3.0)
    compare_with_clones(module, lambda x: x * 3, lambda: (torch.ones(3, requires_grad=True),))


def test_async_forwards():
    """A coroutine is guarded until it is done."""

    class Net(SafeModule):
        async def forward(self, x):
            await asyncio.sleep(0)
            y = x * x
            x.add_(1)
            await asyncio.sleep(0)
            return y + x

    x = torch.ones(3, requires_grad=True)
    caller = Caller(x)
    out = asyncio.run(Net()(x))
    assert_plain(out)
    out.sum().backward()
    grad, x.grad = x.grad, None
    same(grad, torch.full((3,), 3.0))
    caller.check()


def test_generators_are_refused():
    """A generator goes on writing after it has handed something out: refused with the reason."""

    def forward(x):
        yield x.add_(1)

    async def aforward(x):
        yield x.add_(1)

    for function in (forward, aforward):
        with pytest.raises(TypeError, match="cannot guard the generator"):
            freeze_inputs(function)
    with pytest.raises(TypeError, match="cannot guard the generator"):
        type("Net", (SafeModule,), {"forward": lambda self, x: None}).__class__(
            "Net", (SafeModule,), {"forward": forward}
        )


def test_generators_over_frozen_values():
    """The way around: freeze inside, or guard what the generator calls."""
    step = freeze_inputs(lambda x: x.add_(1))

    def forward(x):
        for _ in range(2):
            yield step(x)

    x = torch.ones(3)
    assert [out.tolist() for out in forward(x)] == [[2.0] * 3] * 2
    same(x, torch.ones(3))


def test_star_arguments_and_defaults():
    """`*args`, `**kwargs`, positional-only, keyword-only and default arguments."""

    def forward(a, /, b, *rest, c, d=None, **more):
        for t in (a, b, *rest, c, *more.values()):
            t.mul_(2)
        d = torch.ones_like(a) if d is None else d.mul_(2)
        return a + b + sum(rest) + c + d + sum(more.values())

    guarded = freeze_inputs(forward)
    tensors = [torch.full((2,), float(i)) for i in range(7)]
    caller = Caller(tensors)
    a, b, c, d, e, f, g = tensors
    with record() as log:
        out = guarded(a, b, c, d, c=e, d=f, extra=g)
    same(out, torch.full((2,), 42.0))
    caller.check()
    names = {m.argument for m in log}
    assert names == {"a", "b", "rest[0]", "rest[1]", "c", "d", "extra"}
    with mode("strict"), pytest.raises(InputMutationError, match="argument a"):
        guarded(a, b, c=e)


def test_static_and_class_methods():
    """`freeze_inputs` under and over `staticmethod` and `classmethod`."""

    class Tools:
        @staticmethod
        @freeze_inputs
        def under(x):
            return x.add_(1)

        @freeze_inputs
        @staticmethod
        def over(x):
            return x.add_(1)

        @classmethod
        @freeze_inputs
        def klass(cls, x):
            return x.add_(1)

    for function in (Tools.under, Tools().over, Tools.klass):
        compare_with_clones(function, lambda x: x + 1, lambda: (torch.ones(2),))

"""Views of a handle: recognised, recorded, replayed."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function

from safemodule import freeze, freeze_inputs
from safemodule._compat import interception_off
from safemodule._state import View, handle_and_root
from safemodule._tensor import FrozenTensor
from safemodule._views import PARENT, handles_in, replay_chain
from tests.helpers import compare_with_clones, forward_of, same
from tests.zoo.views import ViewsOfEveryKind


def test_handles_in_finds_them_in_lists_and_tuples():
    """In arguments and keywords, nested."""
    h = freeze(torch.ones(1))
    found = handles_in(FrozenTensor, (1, h, [h, (h, "x")]), {"a": h, "b": [h], "c": None})
    assert [t is h for t in found] == [True] * 5


def test_what_a_view_remembers():
    """Function, arguments with the parent marked, index in the result, grad mode."""
    h = freeze(torch.arange(6.0).reshape(2, 3))
    rows = h.unbind(0)
    with torch.no_grad():
        column = rows[1][1:]
    state = rows[1]._safemodule
    assert type(state) is View
    assert (state.parent, state.index, state.grad) == (None, (1,), True)
    assert list(state.args) == [PARENT, 0]
    below = column._safemodule
    assert below.parent is state
    assert below.grad is False
    assert below.family is state.family


@pytest.mark.parametrize("index", range(len(ViewsOfEveryKind.views(torch.zeros(2, 3, 4)))))
def test_every_kind_of_view_is_replayed_exactly(index):
    """On another tensor of the same geometry it is the same view: strides, offset, values."""
    x = torch.arange(24.0).reshape(2, 3, 4)
    h = freeze(x)
    view = ViewsOfEveryKind.views(h)[index]
    assert type(view) is FrozenTensor
    other = x.clone()
    with interception_off():
        made = replay_chain(view._safemodule, other)
    wanted = ViewsOfEveryKind.views(x)[index]
    assert (made.size(), made.stride()) == (wanted.size(), wanted.stride())
    assert made.storage_offset() == wanted.storage_offset()
    same(made, wanted)
    made.fill_(-1.0)
    assert (other == -1).any()


def test_a_view_is_replayed_in_the_grad_mode_it_was_made_in():
    """And the mode around is left as it was."""
    h = freeze(torch.ones(2, requires_grad=True) * 1)
    with torch.no_grad():
        without = h[0]
    view = h[0]
    other = torch.ones(2, requires_grad=True) * 1
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            with interception_off():
                assert replay_chain(without._safemodule, other).grad_fn is None
                assert replay_chain(view._safemodule, other).grad_fn is not None
            assert torch.is_grad_enabled() is enabled


def test_a_function_that_returns_another_argument():
    """Is nobody's view."""

    def forward(x):
        other = torch.zeros(2)
        out = torch.add(x, 1, out=other)
        assert out is other
        assert type(out) is torch.Tensor
        return out

    assert forward_of(forward)(torch.ones(2)).tolist() == [2, 2]


def test_views_in_nested_results():
    """Lists of views, by any function."""

    def forward(x):
        grids = torch.meshgrid(x, x, indexing="ij")
        parts = torch.broadcast_tensors(x, torch.zeros(2, 4))
        three = torch.atleast_2d(x, torch.zeros(1))
        x.add_(1)
        return [*[g * 1 for g in grids], parts[0] * 1, three[0] * 1]

    compare_with_clones(forward_of(forward), forward, lambda: (torch.arange(4.0),))


def test_einsum_and_matmul_results_are_no_views():
    """What computes, copies."""

    def forward(x):
        y = torch.einsum("ij->ji", x)
        z = x @ torch.eye(2)
        x.add_(1)
        return y * 1, z

    compare_with_clones(forward_of(forward), forward, lambda: (torch.arange(4.0).reshape(2, 2),))


def test_a_view_that_python_drops_in_the_middle():
    """The chain survives its middle link."""

    def forward(x):
        v = x.t()[1:].reshape(-1)[::2] if x.is_contiguous() else x
        w = x[1:].t()[0]
        x.mul_(2)
        w.add_(1)
        return x * 1, v * 1, w * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.arange(6.0).reshape(3, 2),))


def test_views_made_in_inference_mode():
    """Inside an inference block in forward."""

    def forward(x):
        with torch.inference_mode():
            v = x[0]
            w = v[1:]
        with torch.inference_mode():
            v.add_(1)
        return x * 1, v.tolist(), w.tolist()

    x = torch.zeros(2, 2)
    out, v, w = forward_of(forward)(x)
    assert (out.tolist(), v, w) == ([[1, 1], [0, 0]], [1, 1], [1])
    assert x.tolist() == [[0, 0], [0, 0]]


def test_families_are_per_input():
    """Views of two inputs do not meet."""

    @freeze_inputs
    def forward(x, y):
        v, w = x[0], y[0]
        assert v._safemodule.family is not w._safemodule.family
        x.add_(1)
        return w * 1, y._safemodule

    w, _ = forward(torch.zeros(2), torch.zeros(2))
    assert w.tolist() == 0


def test_handle_and_root_of_views():
    """Every view leads to its handle."""
    h = freeze(torch.zeros(2, 2))
    v = h.t()[0]
    assert handle_and_root(v)[0] is h
    assert handle_and_root(v)[1] is handle_and_root(h)[1]


def routed(function):
    """Return a function that asks for overrides, as those of a library may."""

    def call(*args):
        if has_torch_function(args):
            return handle_torch_function(call, args, *args)
        return function(*args)

    return call


def test_views_in_results_of_a_library():
    """Each is found, wherever a function of a library puts it."""
    parts = routed(lambda x: [[x[0], (x[1], 1)], x.sum()])

    def forward(x):
        (a, (b, _)), total = parts(x)
        assert type(total) is torch.Tensor
        x.add_(1)
        return a, b

    x = torch.zeros(2, 2)
    out = forward_of(forward)(x)
    assert [t.tolist() for t in out] == [[1, 1], [1, 1]]
    assert x.sum() == 0


def test_function_that_returns_another_argument():
    """Though it shares memory with the handle, it is nobody's view."""
    x = torch.zeros(2)
    second = routed(lambda _, other: other)

    def forward(handle):
        assert type(second(handle, x)) is torch.Tensor
        assert second(handle, [x])[0] is x
        return type(x)

    assert forward_of(forward)(x) is torch.Tensor

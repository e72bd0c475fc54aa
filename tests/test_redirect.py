"""The redirect: clone and swap, and when it is due."""

from __future__ import annotations

import pytest
import torch

from safemodule import freeze, freeze_inputs, record
from safemodule._compat import COUNTS_TELL, interception_off
from safemodule._redirect import catch_up, redirect
from safemodule._saved import maybe_saved
from safemodule._state import handle_and_root
from safemodule._tensor import FrozenTensor
from tests.helpers import compare_with_clones, forward_of, same


def saved(h):
    """Ask whether autograd may hold the value of a private copy."""
    handle, root = handle_and_root(h)
    with interception_off():
        return maybe_saved(FrozenTensor, handle, root)


def private(*shape, grad=False):
    """Return a handle that has memory of its own."""
    h = freeze(torch.ones(shape, requires_grad=grad) * 1)
    h.add_(0)
    return h


needs_counts = pytest.mark.skipif(not COUNTS_TELL, reason="this torch's use counts do not tell")


@needs_counts
def test_not_saved():
    """What keeps nothing of the copy."""
    h, w = private(3), torch.ones(3, requires_grad=True)
    keep = [h + 1, h.sum(), h[0], h.t(), h.clone(), h + w, h.detach(), h.view(3, 1)[1:]]
    assert not saved(h)
    del keep
    assert not saved(h)


@needs_counts
@pytest.mark.parametrize(
    "use",
    [
        lambda h, w: h * w,
        lambda h, w: (h[1:] * w[1:], 0)[0],
        lambda h, w: h.view(3, 1) @ w.view(1, 3),
        lambda h, w: torch.where(h > 0, w, 0) * h,
        lambda h, w: h.t()[0] * w[0],
        lambda h, w: h[None].expand(2, 3) * w,
        lambda h, w: w.masked_fill(h.bool(), 0) * h,
    ],
)
def test_saved(use):
    """What autograd saved, also of views that Python has dropped."""
    h, w = private(3), torch.ones(3, requires_grad=True)
    out = use(h, w)
    assert saved(h)
    del out
    assert not saved(h)


@needs_counts
def test_saved_until_backward_has_run():
    """Afterwards the copy is free again."""
    h, w = private(3), torch.ones(3, requires_grad=True)
    out = (h * w).sum()
    assert saved(h)
    out.backward()
    assert not saved(h)


@needs_counts
def test_saved_by_a_custom_function():
    """Through `save_for_backward`, and as an attribute of the context."""

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x)
            return w * 1

        @staticmethod
        def backward(ctx, grad):
            return None, grad * ctx.saved_tensors[0]

    h, w = private(3), torch.ones(3, requires_grad=True)
    out = Keeps.apply(h, w)
    assert saved(h)
    h.zero_()
    out.sum().backward()
    assert w.grad.tolist() == [1, 1, 1]


def test_redirect_gives_fresh_memory_and_keeps_views_together():
    """Handle and views share the new memory, the source keeps the old."""
    source = torch.zeros(2, 2)
    h = freeze(source)
    v, w = h[0], h.t()
    handle, root = handle_and_root(h)
    with root.locked(), interception_off():
        assert redirect(FrozenTensor, handle, root) == 16
    h.fill_(1.0)
    assert (v.tolist(), w.tolist(), source.tolist()) == ([1, 1], [[1, 1]] * 2, [[0, 0]] * 2)
    assert root.private


def test_grad_mode_is_restored():
    """Whatever happens in between."""
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            h = freeze(torch.ones(2, requires_grad=True))
            v = h[0]
            h.detach().add_(1)
            assert torch.is_grad_enabled() is enabled
            assert v.item() == 2


def test_a_write_under_no_grad_keeps_the_graph():
    """The copy is differentiable: what was written is a constant, the gradient flows on."""
    x = torch.ones(3, requires_grad=True)

    def forward(h):
        with torch.no_grad():
            h[0] = 5.0
        return h * 2

    out = forward_of(forward)(x)
    assert out.tolist() == [10, 2, 2]
    y = torch.ones(3, requires_grad=True)
    forward(y.clone()).sum().backward()
    out.sum().backward()
    same(x.grad, y.grad)


def test_bytes_on_record_are_those_of_the_copies():
    """The first write of a site carries the bytes, the next ones none."""

    def forward(x, w):
        for _ in range(4):
            x.add_(1)
        y = x * w
        x.add_(1)
        return y

    with record() as log:
        forward_of(forward)(torch.ones(8), torch.ones(8, requires_grad=True))
    assert [(m.count, m.bytes_copied) for m in log] == [(4, 32), (1, 32)]


def test_old_implementation_stays_protective():
    """Whoever gets the object with the earlier value cannot reach the caller by it."""
    kept = []

    class Hands(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            kept.append(ctx.saved_tensors[0])
            return grad * 2

    @freeze_inputs
    def forward(x):
        y = Hands.apply(x)
        x.mul_(3)
        y.sum().backward()
        kept[0].add_(100)
        return x * 1

    x = torch.ones(2, requires_grad=True)
    out = forward(x)
    assert x.tolist() == [1, 1]
    assert out.tolist() == [3, 3]
    assert kept[0].tolist() == [101, 101]


def test_many_redirects_of_one_input():
    """Each earlier value stays what it was."""

    def forward(x, w):
        outs = []
        for i in range(30):
            outs.append(x * w)
            x.add_(i)
        return outs

    def reference(x, w):
        outs = []
        for i in range(30):
            outs.append(x * w)
            x = x + i
        return outs

    compare_with_clones(
        forward_of(forward),
        forward,
        lambda: (
            torch.ones(2, dtype=torch.float64),
            torch.ones(2, dtype=torch.float64).requires_grad_(),
        ),
        reference=reference,
    )


def test_reads_by_a_list_in_a_loop():
    """Rows of a buffer that are read together, and really saved, are spared as single ones are."""

    def forward(x, w):
        for i in range(1, 12):
            x[i] = torch.linalg.multi_dot([x[i - 1], w, x[i - 1]]).tanh()
        return x

    def reference(x, w):
        rows = [x[0]]
        for _ in range(1, 12):
            rows.append(torch.linalg.multi_dot([rows[-1], w, rows[-1]]).tanh())
        return torch.stack(rows)

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(12, 4, 4, generator=generator), torch.randn(4, 4, generator=generator)
    compare_with_clones(
        forward_of(forward),
        forward,
        lambda: (x.double().requires_grad_(), w.double().requires_grad_()),
        reference=reference,
        exact=False,
    )


def test_views_that_missed_a_redirect_catch_up():
    """What another thread redirected between the making of a view and its note; others stay."""
    h = freeze(torch.zeros(4))
    rows, other = list(h.split(2)), torch.zeros(1)
    handle, root = handle_and_root(h)
    family = root.family()
    noted, family.views = family.views, []  # not noted yet
    h.add_(1)
    family.views = noted
    assert rows[0].tolist() == [0, 0]
    catch_up([*rows, other])
    assert [row.tolist() for row in rows] == [[1, 1], [1, 1]]
    rows[1].add_(1)
    assert handle.tolist() == [1, 1, 2, 2]
    assert other.tolist() == [0]

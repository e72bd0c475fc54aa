"""Rule 11: a private copy is cloned again only if autograd saved its value.

Bytes are those on record; what was really allocated is counted by the profiler.
"""

from __future__ import annotations

import pytest
import torch

from safemodule import record
from safemodule._compat import COUNTS_TELL
from tests.helpers import forward_of, same

ROWS, WIDTH = 200, 64
BUFFER = ROWS * WIDTH * 4

if not COUNTS_TELL:
    pytestmark = pytest.mark.skip(reason="this torch's use counts do not tell what is saved")


def allocated(function, *args):
    """Return the bytes that a function allocates, and its result."""
    with torch.profiler.profile(profile_memory=True) as profile:
        out = function(*args)
    total = sum(
        event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0
    )
    return total, out


def copied(function, *args):
    """Return the bytes copied for protection, and the result."""
    with record() as log:
        out = forward_of(function)(*args)
    return sum(m.bytes_copied for m in log), out


def inputs(grad):
    """A weight and a buffer."""
    return torch.randn(WIDTH, requires_grad=grad), torch.randn(ROWS, WIDTH)


def recurrence(w, x):
    """`x[i] = tanh(x[i - 1])`: tanh saves its result, never the buffer."""
    for i in range(1, ROWS):
        x[i] = torch.tanh(x[i - 1] * 1.5) + w
    return x * 1


def test_recurrence_copies_the_buffer_once():
    """The row that is read is multiplied by a number: nothing of the buffer is saved."""
    bytes_copied, out = copied(recurrence, *inputs(grad=True))
    assert bytes_copied == BUFFER
    assert out.requires_grad


def test_recurrence_gradient():
    """And the gradient is that of the out-of-place form."""
    w, x = inputs(grad=True)
    out = forward_of(recurrence)(w, x)
    rows = [x[0]]
    for _ in range(1, ROWS):
        rows.append(torch.tanh(rows[-1] * 1.5) + w)
    reference = torch.stack(rows) * 1
    same(out.detach(), reference.detach())
    same(
        torch.autograd.grad(out.sum(), w)[0],
        torch.autograd.grad(reference.sum(), w)[0],
        exact=False,
    )


def reads_without_saving(w, x):
    """Additions save nothing."""
    total = w * 0
    for i in range(ROWS):
        total = total + x.sum(0)
        x[i] = total.detach()
    return total


def test_reads_that_save_nothing_cost_nothing():
    """One copy, for the first write."""
    assert copied(reads_without_saving, *inputs(grad=True))[0] == BUFFER


def reads_that_save(w, x):
    """A product with a weight saves the buffer."""
    total = w * 0
    for i in range(5):
        total = total + (x * w).sum(0)
        x[i] = total.detach()
    return total


def test_reads_that_save_cost_a_copy_each():
    """Five writes, each after the buffer was saved: five copies, the first one due anyway."""
    assert copied(reads_that_save, *inputs(grad=True))[0] == 5 * BUFFER


def test_without_gradients_one_copy_is_enough():
    """Nothing can be saved."""
    assert copied(reads_that_save, *inputs(grad=False))[0] == BUFFER


def test_writes_in_a_row_cost_one_copy():
    """A hundred writes without a read between."""

    def forward(w, x):
        for i in range(100):
            x[i] = 1.0
            x.mul_(2)
        return (x * w).sum()

    assert copied(forward, *inputs(grad=True))[0] == BUFFER


def saved_result(w, x):
    """`exp_` saves its own result."""
    x.mul_(0.1)
    y = x * w.mean().detach()
    x.add_(w)
    x.exp_()
    x.mul_(2)
    return x * 1 + y


def test_saved_results_of_in_place_operations():
    """Whoever overwrites what `exp_` saved pays a copy, and the gradient is right."""
    w, x = inputs(grad=True)
    bytes_copied, out = copied(saved_result, w, x)
    assert bytes_copied == 2 * BUFFER
    reference = (x * 0.1 + w).exp() * 2 + x * 0.1 * w.mean().detach()
    same(out.detach(), reference.detach(), exact=False)
    same(
        torch.autograd.grad(out.sum(), w)[0],
        torch.autograd.grad(reference.sum(), w)[0],
        exact=False,
    )


def linear_recurrence(w, x):
    """A linear f: each product saves the row that is read, a small view of the buffer."""
    for i in range(1, ROWS):
        x[i] = x[i - 1] * w
    return x * 1


def test_a_small_view_that_is_saved_does_not_clone_the_buffer():
    """Never more than writing it out of place: rows are kept, not buffers."""
    w, x = inputs(grad=True)
    w = (w.detach() * 0.01 + 1).requires_grad_()

    def out_of_place(w, x):
        rows = [x[0]]
        for _ in range(1, ROWS):
            rows.append(rows[-1] * w)
        return torch.stack(rows) * 1

    guarded = forward_of(linear_recurrence)
    guarded(w, x)  # first calls fill memos
    mine, out = allocated(guarded, w, x)
    theirs, reference = allocated(out_of_place, w, x)
    same(out.detach(), reference.detach())
    same(
        torch.autograd.grad(out.sum(), w)[0],
        torch.autograd.grad(reference.sum(), w)[0],
        exact=False,
    )
    assert mine <= 3 * theirs


def test_views_that_python_has_dropped():
    """A saved view that only autograd still holds counts as saved."""

    def forward(w, x):
        x.add_(1)
        y = x[0] * w
        x[0] = 5.0
        return y

    w, x = inputs(grad=True)
    out = forward_of(forward)(w, x)
    same(torch.autograd.grad(out.sum(), w)[0], x[0] + 1)


def test_a_view_of_a_view_that_is_saved():
    """Bases of views may be gone in Python as well."""

    def forward(w, x):
        x.add_(1)
        y = x[0][None][0] * w
        del_me = x.t()[:, 0]
        z = del_me * w
        del del_me
        x.zero_()
        return y + z

    w, x = inputs(grad=True)
    out = forward_of(forward)(w, x)
    same(torch.autograd.grad(out.sum(), w)[0], 2 * (x[0] + 1))


def test_rows_in_a_list_are_spared_too():
    """`multi_dot` takes its matrices in a list, and autograd saves them."""

    def products(w, x):
        for i in range(1, 12):
            x[i] = torch.linalg.multi_dot([x[i - 1], w, x[i - 1]]).tanh()
        return x * 1

    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(12, 4, 4)
    bytes_copied, out = copied(products, w, x)
    assert bytes_copied <= 3 * x.numel() * 4
    out.sum().backward()
    assert torch.isfinite(w.grad).all()

"""Rule 15: a private copy whose address is known elsewhere does not move without a word."""

from __future__ import annotations

import logging

import pytest
import torch

from safemodule import InputMutationError, mode, record
from tests.helpers import Caller, forward_of

EXPORTS = {
    "from_dlpack": lambda x: torch.from_dlpack(x),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy()),
    "__array__": lambda x: torch.from_numpy(x.detach().__array__()),
    "untyped_storage": lambda x: torch.tensor([]).set_(
        x.untyped_storage(), 0, tuple(x.shape), x.stride()
    ),
}
exports = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())


@exports
def test_the_copy_comes_first(export):
    """Who has the address may write there unseen: it is the module's memory, not the caller's."""

    def forward(x):
        other = export(x)
        other.add_(1)
        return x * 1

    x = torch.zeros(3)
    caller = Caller(x)
    assert forward_of(forward)(x).tolist() == [1, 1, 1]
    caller.check()


@exports
def test_it_is_listed_in_copies_and_is_no_mutation(export):
    """`log.copies` names it with its bytes; strict mode does not raise for it."""
    x = torch.zeros(3)
    with mode("strict"), record() as log:
        forward_of(lambda x: export(x).sum())(x)
    assert list(log) == []
    (m,) = log.copies
    assert (m.argument, m.bytes_copied, m.kind) == ("x", 12, "export")


@exports
def test_later_writes_stay_in_the_same_memory(export):
    """Writes after the export show in it, as in a plain module."""

    def forward(x):
        other = export(x)
        x.add_(1)
        x[0] = 5.0
        return other * 1

    assert forward_of(forward)(torch.zeros(3)).tolist() == [5, 1, 1]


def test_a_write_after_the_export_is_a_mutation():
    """And strict refuses it."""

    def forward(x):
        x.data_ptr()
        x.add_(1)

    x = torch.zeros(3)
    caller = Caller(x)
    with mode("strict"), pytest.raises(InputMutationError):
        forward_of(forward)(x)
    caller.check()


@exports
def test_a_move_is_reported(export, caplog):
    """Autograd saved the exported copy's value, so a write must move it: that is logged."""

    def forward(w, x):
        x.mul_(2)
        other = export(x)
        y = x * w
        x.add_(1)
        return y, other * 1

    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with caplog.at_level(logging.WARNING, "safemodule"):
        y, other = forward_of(forward)(w, x)
    assert other.tolist() == [2, 2, 2]
    assert torch.autograd.grad(y.sum(), w)[0].tolist() == [2, 2, 2]
    moved = [r.getMessage() for r in caplog.records if "moves to a fresh copy" in r.getMessage()]
    assert len(moved) == 1
    assert "argument x" in moved[0]


def test_data_ptr_of_an_unwritten_input_is_the_modules():
    """The address handed out is that of the copy."""
    x = torch.zeros(3)
    assert forward_of(lambda x: x.data_ptr())(x) != x.data_ptr()

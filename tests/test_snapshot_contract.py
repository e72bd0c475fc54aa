"""The contract once more, with snapshots of the inputs: made lazily, and cloned, alike.

The tests are those of `test_contract.py` and of the zoo; what they guard is guarded with
`snapshot=True` here.
"""

from __future__ import annotations

import functools

import pytest
import torch

from safemodule import _lazy_copy, freeze_inputs
from tests import test_contract as contract
from tests import test_zoo as zoo
from tests.helpers import forward_of

_OWN_MEMORY = "a snapshot is made on entry: no memory is shared, no write copies"
_NO_LEAF = "a snapshot of a leaf is no leaf, as a clone is none"
OTHERWISE = {
    "test_c3_reading_costs_no_memory": _OWN_MEMORY,
    "test_c3_reading_shares_the_callers_memory": _OWN_MEMORY,
    "test_c3_a_write_copies_the_written_input_only": _OWN_MEMORY,
    "test_c3_a_slice_of_a_large_storage_costs_the_slice": _OWN_MEMORY,
    "test_c5_a_record_is_complete": _OWN_MEMORY,  # it has the bytes of the copy
    "test_c5_an_optimiser_step": _NO_LEAF,
    "test_c7_a_leaf_is_a_leaf": _NO_LEAF,
}
"""What does not hold for snapshots, with the reason."""

for _name, _value in vars(contract).items():
    if _name.startswith("test_") and _name not in OTHERWISE:
        globals()[_name] = _value


def cloned(test):
    """Return a test of the zoo that runs with clones; it has run with lazy copies there."""

    @functools.wraps(test)
    def again(**given):
        test(**given)

    return pytest.mark.parametrize("_snapshots", ["cloned"], indirect=True)(again)


test_zoo_cloned = cloned(zoo.test_snapshot)
test_zoo_in_each_other_cloned = cloned(zoo.test_snapshots_and_guards_in_each_other)


@pytest.fixture(autouse=True, params=["lazy", "cloned"])
def _snapshots(request, monkeypatch):
    """Guard with snapshots, of both kinds."""

    def snapshotting(func=None, **options):
        return freeze_inputs(func, snapshot=True, **options)

    def again(cls):
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls)(cls.__name__, (cls,), names, snapshot=True)

    if request.param == "cloned":
        monkeypatch.setattr(_lazy_copy, "lazy_clone", None)
    monkeypatch.setattr(contract, "forward_of", functools.partial(forward_of, snapshot=True))
    monkeypatch.setattr(contract, "freeze_inputs", snapshotting)
    monkeypatch.setattr(contract, "Writes", again(contract.Writes))
    monkeypatch.setattr(contract, "SafeNet", again(contract.SafeNet))


def test_both_kinds_are_tested(request):
    """The input that a module sees is a lazy copy, and a clone."""
    seen = []
    contract.forward_of(lambda x: seen.append(torch._C._is_cow_tensor(x)))(torch.ones(3))
    assert seen == ["lazy" in request.node.callspec.id]


def test_what_is_left_out_exists():
    """A test that is renamed there is not left out unseen."""
    assert OTHERWISE.keys() <= vars(contract).keys()


def test_a_snapshot_of_a_leaf_is_no_leaf():
    """As a clone is none: its gradient is the caller's."""
    x = torch.ones(2, requires_grad=True)
    seen = []
    contract.forward_of(lambda h: seen.append((h.is_leaf, h.requires_grad)) or h * 2)(
        x
    ).sum().backward()
    assert seen == [(False, True)]
    assert x.grad.tolist() == [2, 2]

"""The exceptions and the warning."""

from __future__ import annotations

import copy
import pickle

import pytest

from safemodule._errors import InplaceError, InputMutationError, InputMutationWarning
from safemodule._record import Mutation

WRITE = Mutation(
    op="add_",
    argument="x",
    module="net.Net",
    shape=(2, 3),
    dtype="float32",
    device="cpu",
    filename="net.py",
    lineno=7,
    function="forward",
    line="x.add_(1)",
    bytes_copied=24,
)
CARRIERS = [InputMutationError, InputMutationWarning]


def test_errors_are_runtime_errors():
    """Code that catches PyTorch's RuntimeError goes on working."""
    assert issubclass(InputMutationError, RuntimeError)
    assert issubclass(InplaceError, RuntimeError)
    assert issubclass(InputMutationWarning, UserWarning)


@pytest.mark.parametrize("cls", [*CARRIERS, InplaceError])
def test_tracebacks_show_the_public_name(cls):
    """The name in a traceback is the one a user imports."""
    assert f"{cls.__module__}.{cls.__qualname__}" == f"safemodule.{cls.__name__}"


@pytest.mark.parametrize("cls", CARRIERS)
def test_carries_text_and_mutation(cls):
    """The text is the message alone; the record is an attribute."""
    error = cls("add_ would write x", WRITE)
    assert str(error) == "add_ would write x"
    assert error.mutation is WRITE
    assert cls("text only").mutation is None


@pytest.mark.parametrize("duplicate", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("cls", CARRIERS)
def test_survives_pickle_and_copy(cls, duplicate):
    """A worker process can hand its error to the parent, record included."""
    again = duplicate(cls("add_ would write x", WRITE))
    assert type(again) is cls
    assert str(again) == "add_ would write x"
    assert again.mutation == WRITE


def test_inplace_error_pickles_with_what_is_set_on_it():
    """Attributes set by explain() travel as well."""
    error = InplaceError("text")
    error.written = WRITE
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is InplaceError
    assert (str(again), again.written) == ("text", WRITE)

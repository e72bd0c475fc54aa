"""The exceptions and the warning."""

from __future__ import annotations

from typing import assert_type

from safemodule import InplaceError, InputMutationError, InputMutationWarning, Mutation

try:
    pass
except InputMutationError as error:
    assert_type(error.mutation, Mutation | None)

runtime_errors: list[type[RuntimeError]] = [InputMutationError, InplaceError]
user_warning: type[UserWarning] = InputMutationWarning
assert_type(InputMutationWarning("text").mutation, Mutation | None)
InputMutationError("text", "x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

"""`record`, `MutationLog` and `Mutation`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_type

from safemodule import Mutation, MutationLog, record

with record() as log:
    assert_type(log, MutationLog)
    as_sequence: Sequence[Mutation] = log

assert_type(log[0], Mutation)
assert_type(log[1:], tuple[Mutation, ...])
assert_type(len(log), int)
assert_type(iter(log), Iterator[Mutation])
assert_type(log.copies, tuple[Mutation, ...])
assert_type(log.to_dicts(), list[dict[str, Any]])
assert_type(log.clear(), None)
log["x"]  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
log[0] = log[1]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]

for mutation in log:
    assert_type(mutation.op, str)
    assert_type(mutation.argument, str)
    assert_type(mutation.module, str)
    assert_type(mutation.shape, tuple[int, ...])
    assert_type(mutation.dtype, str)
    assert_type(mutation.device, str)
    assert_type(mutation.filename, str)
    assert_type(mutation.lineno, int)
    assert_type(mutation.function, str)
    assert_type(mutation.line, str)
    assert_type(mutation.bytes_copied, int)
    assert_type(mutation.count, int)
    assert_type(mutation.kind, str)
    assert_type(mutation.tensor, str)
    assert_type(mutation.site, tuple[str, int, str, str, str])
    assert_type(mutation.to_dict(), dict[str, Any])
    mutation.count = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@record()
def recorded(x: int) -> str:
    """Return something; a block is a decorator too."""
    return str(x)


assert_type(recorded(1), str)

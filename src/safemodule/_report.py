"""Tell the world about a write: the active logs, ``logging``, a warning, or an error.

The mechanism calls `report` after each redirected write, so what is known already must cost
little: a site that has been logged, with nobody recording, leaves at the first test.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn, NotRequired, TypedDict

from safemodule._errors import InputMutationError, InputMutationWarning
from safemodule._fixes import fixes
from safemodule._record import Mutation, active_logs
from safemodule._table import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from safemodule._location import Location
    from safemodule._modes import Mode
    from safemodule._record import Kind, Site

__all__ = [
    "export",
    "forget_sites",
    "is_quiet",
    "moved",
    "mutation",
    "refuse",
    "report",
    "unseen",
]

_logger: Final = logging.getLogger("safemodule")
_enabled: Final = _logger.isEnabledFor

# The first write of each site seen in this process: it saves reading the source line again, and
# keeps the text of a site's warning the same, so that filters see one warning. The oldest goes
# when the memo is full.
_sites: dict[Site, Mutation] = {}
# The sites that had their WARNING. Two modules that write at one line are one such site.
_logged: dict[tuple[str, int, str, str], None] = {}
_SITES_MAX: Final = 4096
_lock: Final = threading.Lock()
# Where the module of a line is not known, the warnings machinery needs a registry all the same.
_registry: dict[Any, Any] = {}


class Facts(TypedDict):
    """What the mechanism knows of a write. Names of dtypes may have torch's prefix."""

    op: str
    argument: str
    module: str
    shape: Sequence[int]
    dtype: str
    device: str
    location: Location
    bytes_copied: NotRequired[int]
    kind: NotRequired[Kind]


def mutation(line: str | None = None, **facts: Unpack[Facts]) -> Mutation:
    """Return the record of one write.

    Args:
        line: The source line, where it is known; else it is read.
        **facts: As in `Mutation`, with the location in one.
    """
    location = facts["location"]
    return Mutation(
        op=facts["op"],
        argument=facts["argument"],
        module=facts["module"],
        shape=tuple(map(int, facts["shape"])),
        dtype=facts["dtype"].removeprefix("torch."),
        device=facts["device"],
        filename=location.filename,
        lineno=location.lineno,
        function=location.function,
        line=location.line if line is None else line,
        bytes_copied=facts.get("bytes_copied", 0),
        kind=facts.get("kind", "tensor"),
    )


def report(mode: Mode, **facts: Unpack[Facts]) -> None:
    """Report a write that went to a copy.

    Raises:
        InputMutationWarning: In mode ``"warn"``, where the user's filters make it an error.
    """
    location = facts["location"]
    site = (
        location.filename,
        location.lineno,
        facts["op"],
        facts["argument"],
        facts["module"],
    )
    first = _sites.get(site)
    logs = active_logs()
    if first is not None and mode != "warn" and not _enabled(logging.DEBUG):
        # Nobody wants the record itself, at most a higher count: 1 us, and 2 with a log.
        if not logs:
            return
        copied, kind = facts.get("bytes_copied", 0), facts.get("kind", "tensor")
        logs = [log for log in logs if not log.bump(site, copied, kind)]
        if not logs:
            return
    m = mutation(None if first is None else first.line, **facts)
    for log in logs:
        log.add(m)
    _log(logging.WARNING if first is None and _is_new(site, m) else logging.DEBUG, m)
    if mode == "warn":  # last, as it may raise
        _warn(m, first or m, location)


def refuse(**facts: Unpack[Facts]) -> NoReturn:
    """Refuse a write: nothing has changed yet, but for kind ``"unseen"``.

    Raises:
        InputMutationError: Always.
    """
    m = mutation(**facts)
    raise InputMutationError(_refusal(m), m)


def export(**facts: Unpack[Facts]) -> None:
    """Note that an input was copied because its raw memory was handed out.

    It goes to ``log.copies`` and to logging at level DEBUG.
    """
    logs = active_logs()
    if not logs and not _enabled(logging.DEBUG):
        return
    facts["kind"] = "export"
    m = mutation(**facts)
    for log in logs:
        log.add(m)
    _log(logging.DEBUG, m)


def forget_sites() -> None:
    """Forget which sites have written, so that the next write is logged as the first. For tests."""
    with _lock:
        _sites.clear()
        _logged.clear()
        _registry.clear()


def _is_new(site: Site, m: Mutation) -> bool:
    """Remember a site; True the first time this line writes this argument in this process."""
    with _lock:
        _sites[site] = m
        while len(_sites) > _SITES_MAX:
            del _sites[next(iter(_sites))]
        key = site[:4]
        new = key not in _logged
        _logged[key] = None
        while len(_logged) > _SITES_MAX:
            del _logged[next(iter(_logged))]
        return new


def _log(level: int, m: Mutation) -> None:
    if not _enabled(level):
        return
    # Built by hand, so that %(pathname)s and %(lineno)d are the user's line and not ours.
    record = _logger.makeRecord(
        _logger.name,
        level,
        m.filename,
        m.lineno,
        _story(m),
        (),
        None,
        m.function,
        {"safemodule_mutation": m},
    )
    _logger.handle(record)


def _story(m: Mutation) -> str:
    """What happened, and what was done about it."""
    if m.kind == "export":
        return f"{m} -- {format_bytes(m.bytes_copied)} copied first"
    if m.kind == "container":
        return f"{m} -- in a copy; the caller's container is unchanged"
    if m.kind == "unseen":
        return f"{_unseen(m)}, in the call of {m.function} ({m.filename}:{m.lineno})"
    return f"{m} -- in a copy of {format_bytes(m.bytes_copied)}; the caller's tensor is unchanged"


def _argument(m: Mutation) -> str:
    tensor = f" ({m.tensor})" if m.dtype else ""
    module = f" of {m.module}" if m.module else ""
    return f"argument {m.argument}{tensor}{module}"


def _unseen(m: Mutation) -> str:
    return (
        f"{_argument(m)} was written by code that PyTorch's Python layer does not see (a scripted"
        " function, a C++ extension, memory exported earlier); the caller's tensor has changed"
    )


def _warn(m: Mutation, first: Mutation, location: Location) -> None:
    # The registry of the user's module is where `warnings.warn` itself notes what was shown.
    names: dict[str, Any] | None = getattr(sys.modules.get(location.module), "__dict__", None)
    registry = _registry if names is None else names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        InputMutationWarning(_story(first), m),
        InputMutationWarning,
        m.filename,
        m.lineno,
        # None would drop the warning without a word; this is what leaving it out stands for.
        module=location.module or m.filename.removesuffix(".py"),
        registry=registry,
    )


def _refusal(m: Mutation) -> str:
    where = f"  at {m.filename}:{m.lineno} in {m.function}" + (f": {m.line}" if m.line else "")
    if m.kind == "unseen":
        lines = [_unseen(m), where, "Possible fixes, best first:"]
    else:
        verb = "change" if m.kind == "container" else "write"
        lines = [
            f"{m.op} would {verb} {_argument(m)}",
            where,
            "Nothing has changed. Possible fixes, best first:",
        ]
    advice = fixes(m.op, m.argument, m.kind)
    lines += [f"  {number}. {fix}" for number, fix in enumerate(advice, 1)]
    return "\n".join(lines)


def is_quiet(op: str, argument: str, module: str, location: Location) -> bool:
    """Tell whether reporting this write in mode ``"copy"`` would change nothing."""
    return (
        not active_logs()
        and (location.filename, location.lineno, op, argument, module) in _sites
        and not _enabled(logging.DEBUG)
    )


def moved(op: str, argument: str, module: str, location: Location) -> None:
    """Say that the private copy, whose address ``op`` handed out, has moved (see the log).

    The write goes to a fresh copy because autograd saved the present value; who kept the address
    goes on seeing that one.
    """
    _logger.warning(
        "argument %s of %s moves to a fresh copy at %s:%d, because autograd saved its value; memory"
        " that %s handed out before keeps that value",
        argument,
        module,
        location.filename,
        location.lineno,
        op,
    )


def unseen(mode: Mode, **facts: Unpack[Facts]) -> None:
    """Report an input that was written past the interception, found when the call returned.

    The caller's tensor has changed already.

    Raises:
        InputMutationError: In mode ``"strict"``.
        InputMutationWarning: In mode ``"warn"``, where the user's filters make it an error.
    """
    facts["kind"] = "unseen"
    if mode == "strict":
        refuse(**facts)
    report(mode, **facts)

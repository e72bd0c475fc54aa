"""pytest plugin: guard every module while tests run, and list what wrote its inputs.

pytest imports this file at every start. So it is small, and imports safemodule, and with it torch,
only in a run that uses it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from safemodule import MutationLog

# ruff: noqa: PLC0415 -- see above

_MODES: Final = ("copy", "warn", "strict")
_MARKER: Final = (
    "safemodule(mode=None, mutable=()): guard every module during this test; "
    "mode is copy, warn, strict or off, mutable holds names of parameters that may be written"
)
# Mode and mutable names of a test that is guarded.
_options: Final = pytest.StashKey[tuple[Any, tuple[str, ...]]]()
_log: Final = pytest.StashKey["MutationLog"]()
# What was written in this process, as dicts: what another process can send.
_rows: Final = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--safemodule-mode`` and the ini option of the same name."""
    text = "guard every torch.nn.Module during tests; what a write to an input does"
    group = parser.getgroup("safemodule", "copy-on-write inputs for PyTorch modules")
    group.addoption("--safemodule-mode", choices=(*_MODES, "off"), default=None, help=text)
    parser.addini("safemodule_mode", f"{text}: {', '.join(_MODES)} (default: no guard)", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and check the ini option."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_rows] = []
    declared = config.getini("safemodule_mode")
    if declared and declared not in _MODES:
        raise pytest.UsageError(
            f"safemodule_mode must be one of {', '.join(_MODES)}, got {declared!r}"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find out which tests are guarded, and how."""
    declared = config.getoption("safemodule_mode") or config.getini("safemodule_mode") or None
    if declared == "off":
        declared = None
    for item in items:
        marker = item.get_closest_marker("safemodule")
        if marker is not None:
            mode, mutable = _read(marker, item.nodeid)
            item.stash[_options] = (mode or declared, mutable)
        elif declared or "safemodule_log" in getattr(item, "fixturenames", ()):
            item.stash[_options] = (declared, ())


def _read(marker: pytest.Mark, test: str) -> tuple[str | None, tuple[str, ...]]:
    mode, mutable = marker.kwargs.get("mode"), marker.kwargs.get("mutable", ())
    if marker.args or marker.kwargs.keys() - {"mode", "mutable"}:
        raise pytest.UsageError(f"{test}: pytest.mark.safemodule takes mode= and mutable=, by name")
    if mode not in (None, "off", *_MODES):
        raise pytest.UsageError(
            f"{test}: mode must be one of {', '.join(_MODES)}, off, got {mode!r}"
        )
    if isinstance(mutable, str):
        raise pytest.UsageError(f"{test}: mutable is a sequence of names, got {mutable!r}")
    return mode, tuple(mutable)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard every module during a test, its fixtures included."""
    if _options not in item.stash:
        return (yield)
    from safemodule import guard
    from safemodule._record import record_everywhere

    mode, mutable = item.stash[_options]
    with ExitStack() as stack:
        log = item.stash[_log] = stack.enter_context(record_everywhere())
        if mode != "off":
            stack.enter_context(guard(mode=mode, mutable=mutable))
        try:
            return (yield)
        finally:
            item.config.stash[_rows] += log.to_dicts()
            del item.stash[_log]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Have a failing test show its own lines and those of the modules, not the library's."""
    try:
        return (yield)
    except BaseException as error:
        if _options in item.stash:
            from safemodule._traceback import clean

            clean(error)
        raise


@pytest.fixture
def safemodule_log(request: pytest.FixtureRequest) -> MutationLog:
    """The writes that modules have made to their inputs so far in this test: a `MutationLog`.

    A test that asks for it is guarded, in mode ``"copy"`` where nothing else is said.
    """
    log: MutationLog = request.node.stash[_log]
    return log


# -- the summary -------------------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the rows of a worker of pytest-xdist to the process that shows them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["safemodule_rows"] = session.config.stash[_rows]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the rows of a worker."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_rows] += output.get("safemodule_rows", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show who wrote its inputs, most frequent first."""
    rows: list[Any] = terminalreporter.config.stash[_rows]
    if not rows:
        return
    from safemodule import Mutation, MutationLog, _table

    log = MutationLog()
    for row in rows:
        fields: Any = {**row, "shape": tuple(row["shape"])}
        log.add(Mutation(**fields))
    terminalreporter.section("safemodule: input mutations")
    terminalreporter.line(_table.as_text(sorted(log, key=lambda m: -m.count), ()))

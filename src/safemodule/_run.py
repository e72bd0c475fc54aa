"""`python -m safemodule run`: a program under guard, unchanged.

The program runs in this process, as `__main__`, with its own arguments, exit status, signals and
output. Every module is guarded, in every thread, until the process ends; in-place errors of the main
thread are explained. What was found is told on stderr when all else is over.

Two things differ from plain Python: torch is imported before the program starts, so what it sets for
torch's import (``OMP_NUM_THREADS``) comes too late; and what child processes find is not collected,
though those that were forked are guarded as well.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from safemodule import _table
from safemodule._errors import InputMutationError
from safemodule._explain import explain, explanation_of
from safemodule._export import write_report
from safemodule._findings import Findings
from safemodule._guard import guard
from safemodule._modes import get_mode, set_mode
from safemodule._program import CannotRunError, Program, load
from safemodule._record import MutationLog, record_everywhere
from safemodule._traceback import chain, clean

if TYPE_CHECKING:
    from types import TracebackType

    from safemodule._explain_message import Explanation
    from safemodule._modes import Mode
    from safemodule._record import Mutation

__all__ = ["run"]


def run(
    target: str,
    args: list[str],
    *,
    module: bool = False,
    mode: Mode | None = None,
    explaining: bool = True,
    report: Path | None = None,
) -> int:
    """Run a program under guard.

    Args:
        target: Path of a script, or name of a module.
        args: The program's own arguments.
        module: Whether ``target`` is a module.
        mode: As in `guard`.
        explaining: Explain in-place errors.
        report: Write what was found to this file.

    Returns:
        Exit status, where the program itself ended without one.

    Raises:
        BaseException: Whatever the program raises, SystemExit included: Python deals with it.
    """
    session = _Session(target, args, mode, report)
    try:
        program = load(target, args, module=module)
    except CannotRunError as error:
        _tell(f"safemodule: {error}", sys.stderr)
        return error.status
    except BaseException:
        _leave_to_python()
        raise
    session.start()
    try:
        with explain() if explaining else contextlib.nullcontext():
            program.run()
    except SystemExit as error:
        session.status = error.code
        raise
    except BaseException as error:
        session.failed(error)
        _leave_to_python()
        raise
    return 0


def _leave_to_python() -> None:
    """Have Python show an error as if the program had been started by itself.

    Python calls `sys.excepthook`, which may be the program's own, and then goes its way: it ends the
    process by the signal after Ctrl-C, joins threads, runs exit functions.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, tb: TracebackType | None) -> Any:
        del tb
        clean(value, start=(Program.run.__code__, load.__code__))
        result = show(kind, value, value.__traceback__)
        explanation = explanation_of(value)
        # It is the error's own text, unless the program raised another one in its place.
        if explanation is not None and not _shows(value, explanation):
            _tell(f"\n{explanation}", sys.stderr)
        return result

    sys.excepthook = hook


def _clean_those_of_threads() -> None:
    """Have errors that end a thread shown without our frames, too."""
    show = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> Any:
        kind, value, _, thread = args
        if value is not None:
            clean(value)
            args = threading.ExceptHookArgs((kind, value, value.__traceback__, thread))
        return show(args)

    threading.excepthook = hook


def _shows(error: BaseException | None, explanation: Explanation) -> bool:
    """Tell whether the traceback of an error ends in, or contains, the text of an explanation."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if str(explanation) in str(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _tell(text: str, stream: TextIO | None) -> None:
    """Write to a stream, unless the program has closed it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=stream, flush=True)


class _Session:
    """What is found while the program runs, and told when it has ended."""

    def __init__(
        self, target: str, args: list[str], mode: Mode | None, report: Path | None
    ) -> None:
        self.status: Any = 0
        self._program = (target, *args)
        self._mode: Mode | None = mode
        self._root = Path.cwd()
        self._report = None if report is None else self._root / report
        self._process = os.getpid()
        self._log = MutationLog()
        self._held = contextlib.ExitStack()
        self._refused: list[Mutation] = []
        self._explanations: list[Explanation] = []

    def start(self) -> None:
        """Guard every module, and record every write, until the process ends."""
        # Before the program's own exit functions are registered, so that this runs after them, when
        # all threads have ended.
        atexit.register(self._finish)
        if self._mode is not None:
            set_mode(self._mode)  # for what the program itself guards without saying how
        _clean_those_of_threads()
        # What is in the table at the end need not be logged in between.
        logging.getLogger("safemodule").addFilter(lambda r: not hasattr(r, "safemodule_mutation"))
        self._log = self._held.enter_context(record_everywhere())
        if self._mode != "off":
            self._held.enter_context(guard(mode=self._mode))

    def failed(self, error: BaseException) -> None:
        """Note an error that ends the program."""
        self.status = 1
        for each in chain(error):
            if isinstance(each, InputMutationError) and each.mutation is not None:
                self._refused.append(each.mutation)
            explanation = explanation_of(each)
            if explanation is not None and explanation not in self._explanations:
                self._explanations.append(explanation)

    def _finish(self) -> None:
        if os.getpid() != self._process:  # forked by the program: the parent speaks
            return
        self._held.close()
        writes = tuple(sorted(self._log, key=lambda m: -m.count))
        status = self.status if isinstance(self.status, int) else int(self.status is not None)
        findings = Findings(
            program=self._program,
            mode=self._mode or get_mode(),
            root=self._root,
            status=status,
            mutations=writes,
            copies=self._log.copies,
            refused=tuple(self._refused),
            explanations=tuple(self._explanations),
        )
        lines = ["", "safemodule: input mutations", _table.as_text(writes, findings.copies)]
        if self._refused:
            lines += ["Refused:", _table.as_text(self._refused, ())]
        if self._report is not None:
            try:
                write_report(findings, self._report)
                lines.append(f"Report: {self._report}")
            except OSError as error:
                lines.append(f"The report could not be written: {error}")
        # The stream of the process: the program may have put another one into sys.stderr.
        _tell("\n".join(lines), sys.__stderr__)

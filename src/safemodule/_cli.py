"""The command line: `python -m safemodule`, also installed as `safemodule`."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safemodule._export import FORMATS, SUFFIXES
from safemodule._modes import MODES
from safemodule._run import run
from safemodule._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_ABOUT = """\
Find out which line of a PyTorch program writes a tensor that it should not, without changing the
program."""

_RUN = """\
Run a Python program, unchanged, under two watches:

  1. Every torch.nn.Module is guarded: a module that writes one of its inputs in place writes to a
     copy. At the end a table on stderr says who wrote what, where, and how often.
  2. When backward() fails because a value was overwritten in place, the error names the line that
     saved the value, each line that wrote it, and possible fixes.

The program gets its own arguments, standard streams and signals, and its exit status is passed on."""

_RUN_MORE = """\
modes:
  copy    the write goes to a copy (default; SAFEMODULE_MODE sets another default)
  warn    the same, and a Python warning at the line
  strict  the program fails at the line, before anything is written
  off     modules are not guarded

examples:
  safemodule run train.py --epochs 3
  safemodule run --mode strict train.py
  safemodule run --report mutations.html -m package.train --epochs 3"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments. Default: those of the process.

    Returns:
        Exit status. A program that ends by itself is left to do so: SystemExit and errors are its.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:  # it has options of its own
        demo: Any = importlib.import_module("safemodule._demo")
        return demo.main(arguments[1:])
    if arguments[:1] == ["run"]:
        return _run(arguments[1:])
    parser = argparse.ArgumentParser(prog="safemodule", description=_ABOUT, formatter_class=_Raw)
    parser.add_argument("--version", action="version", version=f"safemodule {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("run", help="run a program and find its in-place writes")
    commands.add_parser("demo", help="train a small decoder: it fails plain, and works guarded")
    parser.parse_args(arguments)  # ends the process: there is no command, or a wrong one, or --help
    return parser.error("the command comes first")  # pragma: no cover -- if argparse takes "--"


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="safemodule run",
        usage="safemodule run [options] (SCRIPT.py | -m MODULE) [ARGS ...]",
        description=_RUN,
        epilog=_RUN_MORE,
        formatter_class=_Raw,
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module by its name")
    parser.add_argument("--mode", choices=MODES, help="what a write does; see below")
    parser.add_argument(
        "--explain",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="explain in-place errors of backward (default: yes)",
    )
    parser.add_argument(
        "--report", type=_report, metavar="FILE", help=f"write what was found to a file: {FORMATS}"
    )
    own, program = _split(arguments)
    options = parser.parse_args(own)
    if not program:
        parser.error("which program? SCRIPT.py or -m MODULE is missing")
    return run(
        program[0],
        program[1:],
        module=options.module,
        mode=options.mode,
        explaining=options.explain,
        report=options.report,
    )


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split our options from the program and what belongs to it.

    By hand: argparse takes a ``--`` out that is the program's.
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in ("--mode", "--report") else 1
    own, program = arguments[:at], arguments[at:]
    return own, program[1:] if program[:1] == ["--"] else program


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions."""


def _report(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path

"""The program that the command line runs: found, compiled and set up as Python itself would do it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
import types
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["CannotRunError", "Program", "load"]


class CannotRunError(Exception):
    """There is no such program; the text says why.

    Args:
        message: As Python words it.
        status: The exit status that Python gives.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Program(NamedTuple):
    """A program that is ready to run."""

    code: types.CodeType
    module: types.ModuleType
    """Its `__main__`."""

    def run(self) -> None:
        """Run it, as `__main__`. What it raises is the caller's to handle, SystemExit included."""
        sys.modules["__main__"] = self.module
        exec(self.code, vars(self.module))  # noqa: S102 -- the program that we are asked to run


def load(target: str, args: list[str], *, module: bool) -> Program:
    """Find a program, and set `sys.argv` and `sys.path` for it.

    Args:
        target: Name of a module, or path of a script, a folder or an archive with a ``__main__.py``.
        args: The program's own arguments.
        module: Whether ``target`` is a module.

    Raises:
        CannotRunError: If there is no such program.
        Exception: What importing the module's package raises; SyntaxError of the program.
    """
    if module:
        _set_path(str(Path.cwd()))
        sys.argv[:] = ["-m", *args]  # what a package sees that looks at it while it is imported
        spec = _spec_of(target)
        sys.argv[0] = spec.origin or target
        return _of_spec(spec)
    sys.argv[:] = [target, *args]
    path = os.path.abspath(target)  # noqa: PTH100 -- as Python does it: links are kept
    if Path(path).is_dir() or zipfile.is_zipfile(path):
        _set_path(path)
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        if spec is None:
            raise CannotRunError(f"can't find '__main__' module in {path!r}", 1)
        return _of_spec(spec)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        text = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        raise CannotRunError(text, 2) from None
    _set_path(str(Path(path).resolve().parent))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = compile(source, path, "exec", dont_inherit=True)
    return Program(code, _main(__file__=path, __loader__=loader))


def _set_path(first: str) -> None:
    # `python -m` has put the working folder in front, a console script its own. With -P or -I
    # nothing was put there, and nothing is.
    if not sys.flags.safe_path:
        sys.path[0] = first


def _main(**names: Any) -> types.ModuleType:
    module = types.ModuleType("__main__")
    vars(module).update({"__builtins__": builtins, "__cached__": None, **names})
    return module


def _spec_of(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a package of the program imports what is not there
        raise CannotRunError(
            f"Error while finding module specification for {name!r} "
            f"({type(error).__name__}: {error})",
            1,
        ) from None
    except ValueError as error:  # a name such as "a..b"
        raise CannotRunError(
            f"Error while finding module specification for {name!r} ({error})", 1
        ) from None
    if spec is None:
        raise CannotRunError(f"No module named {name}", 1)
    if spec.submodule_search_locations is None:
        return spec
    try:
        inner = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        inner = None
    if inner is None:
        raise CannotRunError(
            f"No module named {name}.__main__; {name!r} is a package and cannot be directly executed",
            1,
        )
    return inner


def _of_spec(spec: ModuleSpec) -> Program:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise CannotRunError(f"No code object available for {spec.name}", 1)
    main = _main(
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    return Program(code, main)

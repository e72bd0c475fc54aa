"""Do something with a module as soon as the program has imported it, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call `then` with a module: now, if it is there, else once it has been imported.

    Args:
        name: Full name of the module.
        then: Called once.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        then(loaded)
    else:
        sys.meta_path.insert(0, _Waiting(name, then))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing, but adds a step to the loading of one module; then it is gone."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        del path, target
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, then = spec.loader, self._then
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            then(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

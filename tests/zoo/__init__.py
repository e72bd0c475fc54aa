"""Small modules, each named for the edge it probes.

What a module here is checked for stands in `tests/test_zoo.py`; the base class says how a module
states its own facts.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.zoo.base import Edge

__all__ = ["Edge", "edges"]


def edges() -> list[type[Edge]]:
    """Return all modules of the zoo."""
    found: list[type[Edge]] = []
    for module in pkgutil.iter_modules(__path__, "tests.zoo."):
        names = vars(importlib.import_module(module.name)).values()
        found.extend(
            v for v in names if isinstance(v, type) and issubclass(v, Edge) and v is not Edge
        )
    return sorted(set(found), key=lambda edge: (edge.__module__, edge.__name__))

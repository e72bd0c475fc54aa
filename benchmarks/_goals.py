"""P1 to P8: what was promised, read off the tables, beside what the cheapest code costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]
Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Goal:
    """One promise and what was measured."""

    name: str
    what: str
    limit: float
    value: float | None = None
    interval: tuple[float, float] | None = None
    """The 95 % interval of the median."""
    quartiles: tuple[float, float] | None = None
    """Of the rounds."""
    floor: float | None = None
    """What the cheapest code that could keep the promise costs, in the same turns."""

    @property
    def reached(self) -> bool | None:
        return None if self.value is None else self.value <= self.limit + 1e-9

    def to_dict(self) -> Row:
        return asdict(self) | {"reached": self.reached}


def _goal(name: str, what: str, limit: float, found: list[tuple[Row, str, str]]) -> Goal:
    """Return the goal for the worst of some cells: (row, column, column of its floor)."""
    found = [cell for cell in found if cell[1] in cell[0]]
    if not found:
        return Goal(name, what, limit)
    row, column, floor = max(found, key=lambda cell: cell[0][cell[1]]["value"])
    cell = row[column]
    return Goal(
        name,
        what,
        limit,
        cell["value"],
        (cell["low"], cell["high"]),
        (cell["q1"], cell["q3"]),
        row[floor]["value"] if floor in row else None,
    )


def _exact(tables: Tables) -> float | None:
    """Return the MiB allocated beyond exactly what was written, at worst."""
    off = [
        abs(row["SafeModule"] - row[exactly]) / unit
        for name, exactly, unit in (("written", "of the k inputs", 1), ("slice", "of the slice", 2**10))
        for row in tables.get(name, {}).get("rows", [])
    ]  # fmt: skip
    return max(off) if off else None


def goals(tables: Tables) -> list[Goal]:
    """Return the promises for the tables that were measured."""

    def rows(table: str, **where: Any) -> list[Row]:
        every = tables.get(table, {}).get("rows", [])
        return [row for row in every if all(row[key] == value for key, value in where.items())]

    def call(size: int, column: str, floor: str, *grads: bool) -> list[tuple[Row, str, str]]:
        return [
            (row, column, floor)
            for grad in grads
            for row in rows("call", elements=size, gradient=grad)
        ]

    clone, bare = "SafeModule / clone", "floor / clone"
    models = rows("models")
    tools = "explain() / set_detect_anomaly"
    return [
        _goal("P1", "added time of a guarded call, one 8-element input, over that of x.clone()", 1.0,
              call(8, clone, bare, False)),
        _goal("P1 grad", "the same where the input requires a gradient", 1.0,
              call(8, clone, bare, True)),
        _goal("P2", "the same at 64 MiB, worst of both", 0.001, call(2**24, clone, bare, False, True)),
        _goal("P3", "added time of an op on a frozen input (x + x) over an empty __torch_function__",
              2.0, [(row, "added / empty", "floor / empty") for row in rows("ops", operation="x + x")]),
        Goal("P4", "extra MiB beyond exactly the written inputs or slice", 0.0, _exact(tables)),
        _goal("P5", "whole models, SafeModule on top, over plain (worst of all)", 1.02,
              [(row, "SafeModule", "floor") for row in models]),
        _goal("P6", "guard() on every submodule of the transformer, over plain (worst pass)", 1.15,
              [(row, "guard()", "floor, all") for row in rows("models", model="transformer")]),
        _goal("P7", "explain() over set_detect_anomaly (worst model)", 1.0,
              [(row, tools, "") for row in rows("debug")]),
        _goal("P8", "mode off, us added to a call (worst of both)", 0.3,
              call(8, "SafeModule off", "floor off", False, True)),
    ]  # fmt: skip

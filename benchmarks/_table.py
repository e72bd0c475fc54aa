"""A table of figures, and how thoroughly to measure it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import _measure as measure

if TYPE_CHECKING:
    import torch


@dataclass
class Table:
    """One table: rows of figures, and what to draw of it."""

    name: str
    title: str
    unit: str
    columns: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    x: str = ""
    """Name of the column on the x axis of the plot; empty: bars."""
    drawn: list[str] = field(default_factory=list)
    """Columns to draw; empty: all variants."""
    intervals: bool = False
    """Whether the tables show the interval of each figure."""

    def add(self, **labels: Any) -> dict[str, Any]:
        """Begin a row."""
        self.rows.append(labels)
        return labels

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {k: v.to_dict() if isinstance(v, measure.Figure) else v for k, v in row.items()}
            for row in self.rows
        ]
        return asdict(self) | {"rows": rows}


@dataclass(frozen=True)
class Setting:
    """How thorough, and where."""

    device: torch.device
    quick: bool

    def turns(
        self, cases: dict[str, measure.Case], *, seconds: float = 0.5, rounds: int = 25
    ) -> measure.Turns:
        """Measure cases in turns, fewer in a quick run."""
        if self.quick:
            seconds, rounds = seconds / 5, max(9, rounds // 3)
        clock = measure.clock_of(self.device)
        return measure.take_turns(cases, seconds=seconds, rounds=rounds, clock=clock)

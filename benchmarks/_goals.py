"""P1 to P8: what was promised, read off the tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """One promise and what was measured."""

    name: str
    what: str
    limit: float
    value: float | None

    @property
    def reached(self) -> bool | None:
        return None if self.value is None else self.value <= self.limit + 1e-9

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"reached": self.reached}


def goals(tables: dict[str, dict[str, Any]]) -> list[Goal]:
    """Return the promises for the tables that were measured."""

    def rows(name: str) -> list[dict[str, Any]]:
        return tables.get(name, {}).get("rows", [])

    def ratio(size: int, *, grad: bool) -> float | None:
        for row in rows("call"):
            if row["elements"] == size and row["gradient"] is grad:
                return row["SafeModule"] / row["x = x.clone() by hand"]
        return None

    ops = {row["operation"]: row.get("ratio") for row in rows("ops")}
    written = rows("written")
    exact = (
        max(abs(row["SafeModule"] - row["of the k inputs"]) for row in written) if written else None
    )
    off = [row["SafeModule off"] for row in rows("call") if row["elements"] == 8]
    models = rows("models")
    debug = rows("debug")
    transformer = [row["guard, all"] for row in models if row["model"] == "transformer"]
    return [
        Goal("P1", "added time of a guarded call, one 8-element input, over that of x.clone()", 1.0,
             ratio(8, grad=False)),
        Goal("P1 grad", "the same where the input requires a gradient", 1.0, ratio(8, grad=True)),
        Goal("P2", "the same at 64 MiB", 0.001, ratio(2**24, grad=False)),
        Goal("P3", "added time of an op on a frozen input (x + x) over an empty __torch_function__",
             2.0, ops.get("x + x")),
        Goal("P4", "extra MiB beyond exactly the written inputs", 0.0, exact),
        Goal("P5", "whole models, SafeModule on top, over plain (worst of all)", 1.02,
             max((row["SafeModule on top"] for row in models), default=None)),
        Goal("P6", "guard() on every submodule of the transformer, over plain (worst pass)", 1.15,
             max(transformer, default=None)),
        Goal("P7", "explain() over set_detect_anomaly (worst model)", 1.0,
             max((row["explain()"] / row["set_detect_anomaly"] for row in debug), default=None)),
        Goal("P8", "mode off, us added to a call", 0.3, max(off, default=None)),
    ]  # fmt: skip

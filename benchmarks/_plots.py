"""One picture per table, as SVG text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "safemodule",  # the same figures give the same file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.transparent": False,
}
import matplotlib.pyplot as plt  # noqa: E402 -- after the backend is chosen

if TYPE_CHECKING:
    from pathlib import Path


def draw(table: dict[str, Any], path: Path) -> None:
    """Draw a table: lines over its `x` column, else groups of bars."""
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    rows = table["rows"]
    series = [name for name in table["drawn"] if any(name in row for row in rows)]
    if table["x"]:
        rows = [row for row in rows if not row.get("gradient")]
        xs = [row[table["x"]] for row in rows]
        for name in series:
            ours = name.startswith(("SafeModule", "guard"))
            style = {"linewidth": 2.5} if ours else {"linestyle": "--"}
            ys = [_value(row.get(name)) for row in rows]
            axes.plot(xs, ys, marker="o", markersize=3, label=name, **style)
        if max(xs) > 1000:
            axes.set_xscale("log", base=2)
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
        axes.set_xlabel(table["x"])
    else:
        label = table["columns"][0]
        names = [" ".join(str(r[c]) for c in (label, "pass", "memory") if c in r) for r in rows]
        width = 0.8 / max(1, len(series))
        for i, name in enumerate(series):
            places = [k + (i - (len(series) - 1) / 2) * width for k in range(len(rows))]
            heights = [_value(row.get(name)) for row in rows]
            errors = [_errors(row.get(name)) for row in rows] if table["intervals"] else None
            axes.bar(
                places,
                heights,
                width,
                label=name,
                yerr=list(zip(*errors, strict=True)) if errors else None,
                error_kw={"linewidth": 0.8},
            )
        axes.set_xticks(range(len(rows)), names, rotation=20, ha="right")
        if table["unit"] == "ratio":
            axes.axhline(1, color="black", linewidth=0.8)
            if max(_value(row.get(name)) for row in rows for name in series) < 2:
                axes.set_ylim(bottom=0.9)  # what matters is the distance from 1
    axes.set_ylabel(table["unit"], fontsize=8)
    figure.legend(fontsize=7, frameon=False, loc="outside upper center", ncols=4)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _value(cell: Any) -> float:
    return cell["value"] if isinstance(cell, dict) else cell or 0.0


def _errors(cell: Any) -> tuple[float, float]:
    if not isinstance(cell, dict):
        return 0.0, 0.0
    return cell["value"] - cell["low"], cell["high"] - cell["value"]

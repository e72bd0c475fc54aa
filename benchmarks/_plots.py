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
    series = [c for c in table["columns"] if any(isinstance(r.get(c), float) for r in rows)]
    series = [c for c in series if c not in ("plain ms", "ratio", "of the k inputs", "plain")]
    if table["x"]:
        rows = [row for row in rows if not row.get("gradient")]
        xs = [row[table["x"]] for row in rows]
        for name in series:
            ys = [row.get(name) for row in rows]
            style = {"linewidth": 2.5} if name.startswith("SafeModule") else {"linestyle": "--"}
            axes.plot(xs, ys, marker="o", markersize=3, label=name, **style)
        if max(xs) > 1000:
            axes.set_xscale("log", base=2)
            axes.set_yscale("symlog", linthresh=1)
        axes.set_xlabel(table["x"])
    else:
        label = table["columns"][0]
        names = [" ".join(str(r[c]) for c in (label, "pass") if c in r) for r in rows]
        width = 0.8 / max(1, len(series))
        for i, name in enumerate(series):
            places = [k + (i - (len(series) - 1) / 2) * width for k in range(len(rows))]
            axes.bar(places, [row.get(name) or 0.0 for row in rows], width, label=name)
        axes.set_xticks(range(len(rows)), names, rotation=20, ha="right")
    axes.set_ylabel(table["unit"])
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

"""From result files to `docs/benchmarks.md` and its pictures; nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "_static" / "benchmarks"


def number(value: Any) -> str:
    """Return a figure with three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return (
            "0" if abs(value) < 5e-4 else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        )
    return "" if value is None else str(value)


def table_lines(columns: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(number(row.get(c)) for c in columns) + " |" for row in rows]
    return lines


def ladder(goals: list[dict[str, Any]]) -> list[str]:
    """Return the promises as a Markdown table."""
    words = {True: "reached", False: "**not reached**", None: "not measured"}
    rows = [
        {
            "": goal["name"],
            "what": goal["what"],
            "goal": f"<= {goal['limit']:g}",
            "measured": number(goal["value"]),
            "verdict": words[goal["reached"]],
        }
        for goal in goals
    ]
    return table_lines(["", "what", "goal", "measured", "verdict"], rows)


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the text of the docs page from the result files, by device."""
    lines = [
        "# Benchmarks",
        "",
        "<!-- Written by `python -m benchmarks report` from benchmarks/results; do not edit. -->",
        "",
        "What guarding costs, beside cloning inputs by hand. All variants of a table were measured in",
        "one run, in turns; figures are the best of the rounds, as noise only ever adds. Run",
        "`make bench` to measure here and now.",
        "",
    ]
    if "cuda" not in results:
        lines += [
            "**Not yet measured on CUDA.** `benchmarks/cuda.sh` runs the same suite there.",
            "",
        ]
    for device, result in results.items():
        meta = result["meta"]
        lines += [
            f"## {'CUDA' if device == 'cuda' else 'CPU'}",
            "",
            (
                f"{meta['machine']}, torch {meta['torch']}, Python {meta['python']}, {meta['date']}"
                f"{', quick run' if meta['quick'] else ''}."
            ),
            "",
            *ladder(result["goals"]),
            "",
            *comments(result),
        ]
        for name, table in result["tables"].items():
            lines += [
                f"### {table['title']}",
                "",
                f"In {table['unit']}. {table['note']}".strip(),
                "",
            ]
            if device == "cpu":
                lines += [f"![{table['title']}](_static/benchmarks/{name}.svg)", ""]
            lines += [*table_lines(table["columns"], table["rows"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def comments(result: dict[str, Any]) -> list[str]:
    """Say plainly where cloning by hand is cheaper, from the figures."""
    cheaper = []
    for row in result["tables"].get("call", {}).get("rows", []):
        if row["SafeModule"] > row["x = x.clone() by hand"]:
            grad = "with" if row["gradient"] else "without"
            cheaper.append(f"{row['elements']:,} elements {grad} a gradient")
    cheaper += [
        f"{row['inputs']} of 8 elements"
        for row in result["tables"].get("inputs", {}).get("rows", [])
        if row["SafeModule"] > row["x = x.clone() by hand"]
    ]
    if not cheaper:
        return ["Cloning by hand was cheaper nowhere in this run.", ""]
    return [f"Cloning by hand was cheaper for: {', '.join(cheaper)}.", ""]


def load() -> dict[str, dict[str, Any]]:
    """Return the newest result of each device."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        found[result["meta"]["device"]] = result
    return dict(sorted(found.items()))


def write() -> None:
    """Write the docs page and its pictures."""
    results = load()
    PAGE.write_text(page(results))
    if "cpu" in results:
        from benchmarks._plots import draw

        PICTURES.mkdir(parents=True, exist_ok=True)
        for name, table in results["cpu"]["tables"].items():
            draw(table, PICTURES / f"{name}.svg")


def check() -> int:
    """Return 1 if the page differs from what the result files say."""
    if PAGE.read_text() != page(load()):
        print(
            "docs/benchmarks.md differs from benchmarks/results: run `python -m benchmarks report`"
        )
        return 1
    return 0

"""From result files to `docs/benchmarks.md` and its pictures; nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "_static" / "benchmarks"


def number(value: Any, *, interval: bool = False) -> str:
    """Return a figure with three significant digits, with its interval if asked."""
    if isinstance(value, dict):
        shown = number(value["value"])
        return f"{shown} [{span(value['low'], value['high'])}]" if interval else shown
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        if value == round(value):
            return f"{value:.0f}"
        # Ratios near 1 are about their third decimal.
        text = f"{value:.3f}" if 0.9 <= abs(value) < 2 else f"{value:.3g}"
        return "0" if abs(value) < 5e-4 else text
    return "" if value is None else str(value)


def span(low: float, high: float) -> str:
    """Return an interval."""
    return f"{number(low)}, {number(high)}"


def markdown(
    columns: list[str], rows: list[dict[str, Any]], *, intervals: bool = False
) -> list[str]:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return lines + [
        "| " + " | ".join(number(row.get(c), interval=intervals) for c in columns) + " |"
        for row in rows
    ]


def ladder(goals: list[dict[str, Any]]) -> list[str]:
    """Return the promises as a Markdown table."""
    words = {True: "reached", False: "**not reached**", None: "not measured"}
    rows = [
        {
            "": goal["name"],
            "what": goal["what"],
            "goal": f"<= {goal['limit']:g}",
            "measured": number(goal["value"]),
            "95 % interval": span(*goal["interval"]) if goal["interval"] else "",
            "quartiles": span(*goal["quartiles"]) if goal["quartiles"] else "",
            "floor": number(goal["floor"]),
            "verdict": words[goal["reached"]],
        }
        for goal in goals
    ]
    return markdown(list(rows[0]), rows)


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the text of the docs page from the result files, by device."""
    lines = [
        "# Benchmarks",
        "",
        "<!-- Written by `python -m benchmarks report` from benchmarks/results; do not edit. -->",
        "",
        "What guarding costs, beside cloning inputs by hand. `make bench` measures it here and now.",
        "",
        "All variants of a row were measured in one run, in turns: in each of many rounds every",
        "variant runs, in random order, and a round counts the fastest of its blocks, as many for",
        "each. A figure is a difference or a ratio within a round, and of these the median over the",
        "rounds; its 95 % interval says how repeatable it is, the quartiles how noisy the machine was.",
        "",
        "A **floor** is what the cheapest code that could keep the promise costs, measured in the same",
        "turns (`benchmarks/_floors.py`): an alias, its class and a look at the version for a call, an",
        "interception that runs the operation as it is for an operation, one question and a call for",
        "mode off. No records, redirects, views or containers: nothing written in Python can go below it.",
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
                f", {meta['threads']} thread{'s' if meta['threads'] > 1 else ''}, {meta['clock']}"
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
            lines += [f"![{table['title']}](_static/benchmarks/{picture(device, name)})", ""]
            lines += [*table_lines(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def table_lines(table: dict[str, Any]) -> list[str]:
    """Return a table of a result file as Markdown."""
    return markdown(table["columns"], table["rows"], intervals=table["intervals"])


def comments(result: dict[str, Any]) -> list[str]:
    """Say plainly where cloning by hand is cheaper, from the figures."""

    def rows(name: str) -> list[dict[str, Any]]:
        return result["tables"].get(name, {}).get("rows", [])

    def dearer(row: dict[str, Any]) -> bool:
        return row["SafeModule"]["value"] > row["x = x.clone() by hand"]["value"]

    cheaper = [
        f"{row['elements']:,} elements {'with' if row['gradient'] else 'without'} a gradient"
        for row in rows("call")
        if dearer(row)
    ]
    cheaper += [f"{row['inputs']} of 8 elements" for row in rows("inputs") if dearer(row)]
    cheaper += [
        f"a loop of {row['turns']} writes"
        for row in rows("loop")
        if row["SafeModule"]["value"] > row["mask cloned by hand"]["value"]
    ]
    cheaper += [
        f"{row['model']} ({row['pass']})"
        for row in rows("models")
        # Only where the intervals lie apart: most of these differences are noise.
        if row["SafeModule"]["low"] > row["x = x.clone() by hand"]["high"]
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


def picture(device: str, table: str) -> str:
    """Return the file name of a picture."""
    return f"{table}.svg" if device == "cpu" else f"{device}-{table}.svg"


def pictures(result: dict[str, Any], folder: Path) -> None:
    """Draw the tables of a result."""
    from benchmarks._plots import draw  # needs matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    for name, table in result["tables"].items():
        draw(table, folder / picture(result["meta"]["device"], name))


def write() -> None:
    """Write the docs page and its pictures."""
    results = load()
    PAGE.write_text(page(results))
    for result in results.values():
        pictures(result, PICTURES)


def check() -> int:
    """Return 1 if the page differs from what the result files say."""
    if PAGE.read_text() != page(load()):
        print(
            "docs/benchmarks.md differs from benchmarks/results: run `python -m benchmarks report`"
        )
        return 1
    return 0

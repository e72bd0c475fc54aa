"""Reports: the format follows from the file's suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from safemodule._export_html import as_html
from safemodule._export_json import as_json
from safemodule._export_sarif import as_sarif

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from safemodule._findings import Findings

__all__ = ["FORMATS", "SUFFIXES", "write_report"]

_WRITERS: Final[dict[str, Callable[[Findings], str]]] = {
    ".json": as_json,
    ".html": as_html,
    ".sarif": as_sarif,
}
SUFFIXES: Final = tuple(_WRITERS)
FORMATS: Final = ".json for tools, .html for people, .sarif for code review"


def write_report(findings: Findings, path: Path) -> None:
    """Write a report.

    Args:
        findings: What was found.
        path: Where to; its suffix is one of `SUFFIXES`.

    Raises:
        OSError: If the file cannot be written.
    """
    text = _WRITERS[path.suffix.lower()](findings)
    path.write_text(text, encoding="utf-8")

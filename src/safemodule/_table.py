"""Words and tables for records: tensors, numbers of bytes, a log in text or HTML."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from safemodule._record import Mutation

__all__ = ["as_html", "as_text", "describe", "format_bytes", "short_path", "total"]

_LINE_WIDTH: Final = 60
_HEADER: Final = ("count", "op", "argument", "tensor", "copied", "module", "where", "line")


def describe(shape: Sequence[int], dtype: str, device: str) -> str:
    """Return a tensor in words, such as ``bool[1024, 21] cuda:0``; ``""`` without a dtype."""
    return f"{dtype}[{', '.join(map(str, shape))}] {device}" if dtype else ""


def format_bytes(n: int) -> str:
    """Return a number of bytes in words, such as ``21.0 KiB``."""
    if n < 1024:
        return f"{n} B"
    size = n / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def as_text(writes: Sequence[Mutation], exports: Sequence[Mutation]) -> str:
    """Return a table of the writes, and one of the exports if there are any."""
    parts = [_rows(writes), total(writes, exports)] if writes else ["No argument was written"]
    parts[-1] += "."
    if exports:
        parts += ["Copied because raw memory was handed out:", _rows(exports)]
    return "\n".join(parts)


def as_html(writes: Sequence[Mutation], exports: Sequence[Mutation]) -> str:
    """Return one HTML table of all."""
    if not writes and not exports:
        return "<p>No argument was written.</p>"
    rows = "".join(_html_row("td", _cells(m)) for m in (*writes, *exports))
    caption = html.escape(total(writes, exports))
    return f"<table><caption>{caption}</caption>{_html_row('th', _HEADER)}{rows}</table>"


def _cells(m: Mutation) -> tuple[str, ...]:
    where = f"{short_path(m.filename)}:{m.lineno} in {m.function}"
    line = m.line if len(m.line) <= _LINE_WIDTH else m.line[: _LINE_WIDTH - 3] + "..."
    copied = format_bytes(m.bytes_copied)
    return (str(m.count), m.op, m.argument, m.tensor, copied, m.module, where, line)


def _rows(mutations: Sequence[Mutation]) -> str:
    rows = [_HEADER, *map(_cells, mutations)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].rjust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def total(writes: Sequence[Mutation], exports: Sequence[Mutation]) -> str:
    """Return the sums in words, such as ``2 sites, 139 writes, 2.8 MiB copied``."""
    count = sum(m.count for m in writes)
    copied = sum(m.bytes_copied for m in (*writes, *exports))
    text = f"{_plural(len(writes), 'site')}, {_plural(count, 'write')}"
    if exports:
        text += f", {_plural(len(exports), 'export')} of raw memory"
    return f"{text}, {format_bytes(copied)} copied"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def short_path(filename: str) -> str:
    """Return a path below the working folder relative to it; any other as it is."""
    try:
        here = str(Path.cwd()) + os.sep
    except OSError:  # the folder is gone
        return filename
    return filename.removeprefix(here)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

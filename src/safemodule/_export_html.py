"""Reports for people: one HTML page that needs nothing else."""

from __future__ import annotations

import html
import linecache
from typing import TYPE_CHECKING, Final

from safemodule import _table
from safemodule._fixes import fixes
from safemodule._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from safemodule._explain_message import Explanation
    from safemodule._findings import Findings
    from safemodule._record import Mutation

__all__ = ["as_html"]

_AROUND: Final = 2  # lines of source above and below the one that wrote
_HEADER: Final = ("count", "module", "argument", "tensor", "op", "where", "copied")

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --mark: #fc07; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: right; white-space: nowrap; }
tr.source td { text-align: left; white-space: normal; padding-top: 0; }
tr.site td { border-bottom: 0; padding-top: .8rem; }
mark { background: var(--mark); color: inherit; }
summary { cursor: pointer; }
"""


def as_html(findings: Findings) -> str:
    """Return a report as an HTML page: errors first, then the writes with the lines around them."""
    title = f"safemodule: {_text(' '.join(findings.program))}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head>",
        "<body>",
        f"<h1>{title}</h1>",
        f"<p>Mode {_text(findings.mode)}, exit status {findings.status}</p>",
        f"<p>In <code>{_text(findings.root)}</code></p>",
        *(_explanation(each) for each in findings.explanations),
    ]
    if findings.refused:
        parts += ["<h2>Refused</h2>", _mutations(findings.refused, findings)]
    parts.append("<h2>Input mutations</h2>")
    if findings.mutations:
        parts.append(f"<p>{_text(_table.total(findings.mutations, ()))}</p>")
        parts.append(_mutations(findings.mutations, findings))
    else:
        parts.append("<p>No argument was written.</p>")
    if findings.copies:
        parts.append("<h2>Copied because raw memory was handed out</h2>")
        parts.append(_mutations(findings.copies, findings))
    parts += [f"<p>safemodule {_text(__version__)}</p>", "</body>", "</html>", ""]
    return "\n".join(parts)


def _text(value: object) -> str:
    return html.escape(str(value))


def _explanation(explanation: Explanation) -> str:
    return f"<h2>In-place error</h2>\n<pre>{_text(explanation)}</pre>"


def _mutations(mutations: Iterable[Mutation], findings: Findings) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEADER)
    rows = "\n".join(_row(m, findings) for m in mutations)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"


def _row(m: Mutation, findings: Findings) -> str:
    where = f"{findings.relative(m.filename)}:{m.lineno} in {m.function}"
    cells = (
        str(m.count),
        m.module,
        m.argument,
        m.tensor,
        m.op,
        where,
        _table.format_bytes(m.bytes_copied),
    )
    site = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
    more = _source(m) + _advice(fixes(m.op, m.argument, m.kind))
    return (
        f'<tr class="site">{site}</tr>\n'
        f'<tr class="source"><td colspan="{len(_HEADER)}">{more}</td></tr>'
    )


def _source(m: Mutation) -> str:
    """The line that wrote, with those around it where the file is at hand and unchanged."""
    here = linecache.getline(m.filename, m.lineno)
    if not m.line or here.strip() != m.line:
        return f"<pre><mark>{_text(m.line)}</mark></pre>" if m.line else ""
    lines: list[str] = []
    for number in range(max(1, m.lineno - _AROUND), m.lineno + _AROUND + 1):
        line = linecache.getline(m.filename, number).rstrip()
        if line or number == m.lineno:
            text = _text(f"{number:>5}  {line}")
            lines.append(f"<mark>{text}</mark>" if number == m.lineno else text)
    return "<pre>" + "\n".join(lines) + "</pre>"


def _advice(advice: Sequence[str]) -> str:
    if not advice:
        return ""
    items = "".join(f"<li><code>{_text(fix)}</code></li>" for fix in advice)
    return f"<details><summary>Possible fixes, best first</summary><ol>{items}</ol></details>"

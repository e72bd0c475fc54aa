"""Reports for tools, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safemodule._version import __version__

if TYPE_CHECKING:
    from safemodule._findings import Findings

__all__ = ["as_json"]


def as_json(findings: Findings) -> str:
    """Return a report as JSON.

    One object: ``tool`` and ``version`` (of this package), ``format`` (1; a higher number if fields
    change their meaning), and what `Findings` holds: ``program``, ``mode``, ``root``, ``status``,
    ``explanations``, and lists of mutations with the fields of `Mutation`.
    """
    head = {"tool": "safemodule", "version": __version__, "format": 1}
    return json.dumps(head | findings.to_dict(), indent=2, ensure_ascii=False) + "\n"

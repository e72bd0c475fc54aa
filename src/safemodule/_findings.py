"""What a run found: the content of each report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from safemodule._explain_message import Explanation
    from safemodule._modes import Mode
    from safemodule._record import Mutation

__all__ = ["Findings"]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run found: strings and numbers only.

    Attributes:
        program: The script or module, and its arguments.
        mode: The mode the modules were guarded in.
        root: The working folder at the start: paths below it are given relative to it.
        status: The program's exit status.
        mutations: Writes that went to a copy, most frequent first.
        copies: Copies made because raw memory was handed out.
        refused: Writes that were refused (mode ``"strict"``) and ended the program.
        explanations: Explanations of the in-place errors that ended the program.
    """

    program: tuple[str, ...]
    mode: Mode
    root: Path
    status: int
    mutations: tuple[Mutation, ...]
    copies: tuple[Mutation, ...] = ()
    refused: tuple[Mutation, ...] = ()
    explanations: tuple[Explanation, ...] = ()

    def relative(self, filename: str) -> str:
        """Return a path below the root relative to it; any other as it is."""
        return filename.removeprefix(str(self.root) + os.sep)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict that JSON can hold."""

        def rows(mutations: tuple[Mutation, ...]) -> list[dict[str, Any]]:
            return [{**m.to_dict(), "filename": self.relative(m.filename)} for m in mutations]

        explanations = [explanation.to_dict() for explanation in self.explanations]
        for explanation in explanations:
            for event in explanation["events"]:
                event["filename"] = self.relative(event["filename"])
        return {
            "program": list(self.program),
            "mode": self.mode,
            "root": str(self.root),
            "status": self.status,
            "mutations": rows(self.mutations),
            "copies": rows(self.copies),
            "refused": rows(self.refused),
            "explanations": explanations,
        }

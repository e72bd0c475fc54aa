"""Reports for code review, as SARIF 2.1.0: each finding becomes an annotation at its line.

The format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from safemodule._fixes import fixes
from safemodule._table import format_bytes
from safemodule._version import __version__

if TYPE_CHECKING:
    from safemodule._explain_message import Explanation
    from safemodule._findings import Findings
    from safemodule._location import Location
    from safemodule._record import Mutation

__all__ = ["as_sarif"]

_SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT: Final = "%SRCROOT%"
_RULES: Final[dict[str, tuple[str, str, str]]] = {
    "input-mutation": (
        "InputMutation",
        "A module writes one of its inputs in place.",
        "The caller's tensor changes, or its backward() fails: write out of place.",
    ),
    "container-mutation": (
        "ContainerMutation",
        "A module changes a container that it was given.",
        "The caller's dict, list or object changes: build a new one.",
    ),
    "unseen-write": (
        "UnseenWrite",
        "An input was written by code that PyTorch's Python layer does not see.",
        "Nothing protects the caller from a scripted function or a C++ extension: give it a clone.",
    ),
    "inplace-error": (
        "InplaceError",
        "A value that backward needs is overwritten in place.",
        "Gradients cannot be computed, and backward() raises an error: write to a copy.",
    ),
}
_RULE_OF_KIND: Final = {"container": "container-mutation", "unseen": "unseen-write"}


def as_sarif(findings: Findings) -> str:
    """Return a report as SARIF 2.1.0, with paths relative to the folder where the program started."""
    results = [_mutation(m, findings, "warning") for m in findings.mutations]
    results += [_mutation(m, findings, "error") for m in findings.refused]
    results += [_explanation(each, findings) for each in findings.explanations]
    run = {
        "tool": {"driver": {"name": "safemodule", "version": __version__, "rules": _rules()}},
        "invocations": [
            {
                "executionSuccessful": findings.status == 0,
                "exitCode": findings.status,
                "arguments": list(findings.program),
            }
        ],
        "originalUriBaseIds": {_ROOT: {"uri": findings.root.as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rules() -> list[dict[str, Any]]:
    return [
        {
            "id": rule,
            "name": name,
            "shortDescription": {"text": short},
            "fullDescription": {"text": f"{short} {more}"},
            "help": {"text": more},
            "defaultConfiguration": {"level": "error" if rule == "inplace-error" else "warning"},
        }
        for rule, (name, short, more) in _RULES.items()
    ]


def _mutation(m: Mutation, findings: Findings, level: str) -> dict[str, Any]:
    rule = _RULE_OF_KIND.get(m.kind, "input-mutation")
    tensor = f" ({m.tensor})" if m.tensor else ""
    times = "once" if m.count == 1 else f"{m.count} times"
    verb = "is refused to write" if level == "error" else "writes"
    if m.kind == "container":
        verb = "is refused to change" if level == "error" else "changes"
    copied = (
        f"; {format_bytes(m.bytes_copied)} copied to protect the caller" if m.bytes_copied else ""
    )
    text = f"{m.op} {verb} argument {m.argument}{tensor} of {m.module}, {times}{copied}."
    # What softens the strict mode is no change of the program.
    advice = [fix for fix in fixes(m.op, m.argument, m.kind) if not fix.startswith("mode=")]
    if advice:
        text += f" Possible fixes: {'; or '.join(advice)}."
    result = _result(rule, level, text)
    result["locations"] = [_location(m.filename, m.lineno, m.line, findings, function=m.function)]
    result["occurrenceCount"] = m.count
    # The same finding keeps its identity when lines move.
    identity = "\n".join(
        (rule, findings.relative(m.filename), m.function, m.line, m.op, m.argument)
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()
    result["partialFingerprints"] = {"mutation/v1": digest}
    result["properties"] = {"bytesCopied": m.bytes_copied, "module": m.module, "op": m.op}
    return result


def _explanation(explanation: Explanation, findings: Findings) -> dict[str, Any]:
    """The annotation stands at the last write; the other lines are related locations."""
    result = _result("inplace-error", "error", str(explanation))
    events = [(event, event.where) for event in explanation.events if event.where is not None]
    writes = [entry for entry in events if entry[0].kind == "written"] or events
    if writes:
        result["locations"] = [_location_of(writes[-1][1], findings)]
        result["relatedLocations"] = [
            {**_location_of(where, findings), "id": number, "message": {"text": event.text}}
            for number, (event, where) in enumerate(events, 1)
        ]
    return result


def _result(rule: str, level: str, text: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": level,
        "message": {"text": text},
    }


def _location_of(where: Location, findings: Findings) -> dict[str, Any]:
    return _location(where.filename, where.lineno, where.line, findings, function=where.function)


def _location(
    filename: str, lineno: int, line: str, findings: Findings, *, function: str
) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [{"name": function, "kind": "function"}],
    }
    if lineno > 0 and not filename.startswith("<"):  # code that no file holds: `exec`, a notebook
        region: dict[str, Any] = {"startLine": lineno}
        if line:
            region["snippet"] = {"text": line}
        location["physicalLocation"] = {
            "artifactLocation": _artifact(filename, findings),
            "region": region,
        }
    return location


def _artifact(filename: str, findings: Findings) -> dict[str, str]:
    relative = findings.relative(filename)
    if relative != filename or not Path(filename).is_absolute():
        return {"uri": quote(relative.replace(os.sep, "/")), "uriBaseId": _ROOT}
    return {"uri": Path(filename).as_uri()}

"""Reports: what a tool or a person finds in them."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path

import pytest

from safemodule import Mutation
from safemodule._explain_message import Event, Explanation
from safemodule._export import SUFFIXES, write_report
from safemodule._export_html import as_html
from safemodule._export_json import as_json
from safemodule._export_sarif import as_sarif
from safemodule._findings import Findings
from safemodule._location import Location


def write(**changes):
    """Return a record of writes."""
    fields = {
        "op": "masked_fill_",
        "argument": "batch['mask']",
        "module": "net.Decoder",
        "shape": (1024, 21),
        "dtype": "bool",
        "device": "cuda:0",
        "filename": "/work/src/net one.py",
        "lineno": 12,
        "function": "forward",
        "line": "mask.masked_fill_(a < b, True)",
        "bytes_copied": 21504,
        "count": 139,
    }
    return Mutation(**fields | changes)


def explanation():
    """Return an explanation of an in-place error."""
    saved = Event("saved", "saved for backward by mul", Location("/work/a.py", 8, "step", "a"))
    written = Event("written", "written by fill_", Location("/work/a.py", 9, "step", "a"))
    return Explanation(
        "modified by an inplace operation",
        "float32[3] cpu",
        "t",
        "",
        (saved, written),
        ("clone <it>",),
    )


def findings(**changes):
    """Return what a run found."""
    fields = {
        "program": ("train.py", "--lr", "<1>"),
        "mode": "copy",
        "root": Path("/work"),
        "status": 0,
        "mutations": (write(), write(kind="container", shape=(), dtype="", device="", count=1)),
        "copies": (write(op="numpy", kind="export", filename="/elsewhere/net.py"),),
    }
    return Findings(**fields | changes)


FAILED = {"status": 1, "refused": (write(count=1),), "explanations": (explanation(),)}


# -- json --------------------------------------------------------------------------------------------


def test_json():
    """Every field of every record, with paths relative to where the program started."""
    report = json.loads(as_json(findings(**FAILED)))
    assert report["tool"] == "safemodule"
    assert report["format"] == 1
    assert report["program"] == ["train.py", "--lr", "<1>"]
    assert (report["mode"], report["root"], report["status"]) == ("copy", "/work", 1)
    assert report["mutations"][0] == write().to_dict() | {"filename": "src/net one.py"}
    assert [row["kind"] for row in report["mutations"]] == ["tensor", "container"]
    assert report["copies"][0]["filename"] == "/elsewhere/net.py"
    assert report["refused"][0]["count"] == 1
    (found,) = report["explanations"]
    assert found["fixes"] == ["clone <it>"]
    assert [(event["kind"], event["filename"], event["lineno"]) for event in found["events"]] == [
        ("saved", "a.py", 8),
        ("written", "a.py", 9),
    ]


# -- sarif -------------------------------------------------------------------------------------------


def run_of(found):
    """Return the one run of a SARIF report, and check what the standard requires of each object."""
    log = json.loads(as_sarif(found))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "safemodule"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
    for result in run["results"]:
        assert result["message"]["text"]
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        for location in result.get("locations", []) + result.get("relatedLocations", []):
            physical = location.get("physicalLocation")
            if physical is not None:
                uri = physical["artifactLocation"]["uri"]
                assert " " not in uri
                assert ("uriBaseId" in physical["artifactLocation"]) == (
                    not uri.startswith("file:")
                )
                assert physical["region"]["startLine"] >= 1
    for base in run["originalUriBaseIds"].values():
        assert base["uri"].endswith("/")
    return run


def test_sarif():
    """Each site is an annotation at its line, relative to the root."""
    run = run_of(findings())
    tensor, container = run["results"]
    assert tensor["ruleId"] == "input-mutation"
    assert container["ruleId"] == "container-mutation"
    assert tensor["level"] == "warning"
    assert tensor["occurrenceCount"] == 139
    physical = tensor["locations"][0]["physicalLocation"]
    assert physical == {
        "artifactLocation": {"uri": "src/net%20one.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12, "snippet": {"text": "mask.masked_fill_(a < b, True)"}},
    }
    text = tensor["message"]["text"]
    assert "writes argument batch['mask'] (bool[1024, 21] cuda:0) of net.Decoder, 139 times" in text
    assert "21.0 KiB copied" in text
    assert "mask = batch['mask'].masked_fill(" in text
    assert "mode=" not in text
    assert "changes argument" in container["message"]["text"]
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": "file:///work/"}}
    (invocation,) = run["invocations"]
    assert invocation == {
        "executionSuccessful": True,
        "exitCode": 0,
        "arguments": ["train.py", "--lr", "<1>"],
    }


def test_sarif_of_a_failure():
    """What was refused is an error; an in-place error stands at the write, related to the save."""
    run = run_of(findings(mutations=(), **FAILED))
    refused, error = run["results"]
    assert (refused["level"], error["level"]) == ("error", "error")
    assert "is refused to write" in refused["message"]["text"]
    assert error["ruleId"] == "inplace-error"
    lines = [
        [place["physicalLocation"]["region"]["startLine"] for place in error[name]]
        for name in ("locations", "relatedLocations")
    ]
    assert lines == [[9], [8, 9]]
    assert [place["message"]["text"] for place in error["relatedLocations"]] == [
        "saved for backward by mul",
        "written by fill_",
    ]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_of_code_without_a_file():
    """What `exec` ran, or a notebook, has a function and no place; a path elsewhere is a full URI."""
    outside = write(filename="/elsewhere/net.py", kind="unseen")
    run = run_of(findings(mutations=(write(filename="<string>"), outside)))
    nowhere, elsewhere = run["results"]
    assert nowhere["locations"] == [{"logicalLocations": [{"name": "forward", "kind": "function"}]}]
    assert elsewhere["ruleId"] == "unseen-write"
    artifact = elsewhere["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///elsewhere/net.py"}


def test_sarif_fingerprints():
    """A finding keeps its identity when lines move, and two findings do not share one."""
    moved, other = write(lineno=40, count=2), write(op="add_")
    results = run_of(findings(mutations=(write(), moved, other)))["results"]
    first, second, third = (result["partialFingerprints"]["mutation/v1"] for result in results)
    assert first == second != third


def test_sarif_of_nothing():
    """The report of a clean run is valid, and empty."""
    assert run_of(findings(mutations=(), copies=()))["results"] == []


# -- html --------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Reads a page, and sees that its tags are closed in order."""

    VOID = ("meta", "link", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not [value for name, value in attrs if name in ("src", "href")]  # needs nothing else
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def test_html(tmp_path):
    """Each site with the lines around it, and possible fixes; everything is escaped."""
    path = tmp_path / "net.py"
    path.write_text("def forward(mask):\n    a = '<b>'\n    mask.fill_(a < b)\n    return a\n")
    here = write(filename=str(path), lineno=3, line="mask.fill_(a < b)", op="fill_")
    stale = write(filename=str(path), lineno=2, line="gone.fill_(1)", op="fill_")
    text = as_html(findings(root=tmp_path, mutations=(here, stale), **FAILED))
    page = Page(text)
    shown = "".join(page.text)
    assert page.seen.count("table") == 3
    assert "safemodule: train.py --lr <1>" in shown
    assert "net.py:3 in forward" in shown
    assert "    2      a = '<b>'\n    3      mask.fill_(a < b)\n    4      return a" in shown
    assert "<mark>    3      mask.fill_(a &lt; b)</mark>" in text
    assert "<mark>gone.fill_(1)</mark>" in text
    assert "bool[1024, 21] cuda:0" in shown
    assert "3. mask = batch" not in shown
    assert "torch.full_like(batch['mask'], value)" in shown
    assert "clone <it>" in shown
    assert "Copied because raw memory was handed out" in shown


def test_html_of_nothing():
    """It says so."""
    page = Page(as_html(findings(mutations=(), copies=())))
    assert "No argument was written." in "".join(page.text)
    assert "table" not in page.seen


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_chooses(tmp_path, suffix):
    """Each format is written in UTF-8, whatever the case of the suffix."""
    path = tmp_path / f"report{suffix.upper()}"
    write_report(findings(program=("größe.py",)), path)
    text = path.read_text(encoding="utf-8")
    assert "größe.py" in text
    assert text.startswith("<!DOCTYPE html>" if suffix == ".html" else "{")
    assert ("$schema" in text) == (suffix == ".sarif")


# -- what there is no advice for ---------------------------------------------------------------------


def test_nothing_to_advise(monkeypatch):
    """Where no fix is known, none is promised, in any format."""
    for module in ("_export_html", "_export_sarif"):
        monkeypatch.setattr(f"safemodule.{module}.fixes", lambda *_: ())
    found = findings(explanations=(Explanation("sentence", "float32[3] cpu", "t", "", (), ()),))
    assert "Possible fixes" not in as_html(found)
    *writes, explained = run_of(found)["results"]
    assert not any("Possible fixes" in result["message"]["text"] for result in writes)
    assert "locations" not in explained

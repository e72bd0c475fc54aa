"""Every code block of the README and of the documentation runs.

The blocks of one page run in order and share their names, as a reader would type them:

- a ``python`` block runs, with warnings as errors;
- a ``pycon`` block runs as a doctest;
- any other block (``text``, ``console``) is for reading.

``<!-- not run: REASON -->`` on the line before keeps a block from running.
"""

from __future__ import annotations

import copy
import doctest
import itertools
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import safemodule.testing

ROOT = Path(__file__).parent.parent
PACKAGE = Path(safemodule.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|:{3,}) *\{?(?:code-block\} *)?(?P<language>[\w-]*)"
)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A block of code: its language, the lines before it as blank lines, and its text."""

    language: str
    line: int
    source: str


def blocks(text):
    """Yield the blocks of a page that are to run."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        opening = FENCE.match(lines[i])
        if not opening or not opening["fence"].startswith("`"):
            i += 1
            continue
        start = i + 1
        indent = len(opening["indent"])
        i = start
        while i < len(lines) and lines[i].strip() != opening["fence"]:
            i += 1
        assert i < len(lines), f"the block of line {start} does not end"
        skipped = start > 1 and NOT_RUN.search(lines[start - 2])
        if opening["language"] in {"python", "pycon"} and not skipped:
            body = [line[indent:] for line in lines[start:i]]
            # MyST options such as `:emphasize-lines: 3` are no code.
            body = ["" if re.match(r":[\w-]+:", line) else line for line in body]
            yield Block(opening["language"], start, "\n".join(body) + "\n")
        i += 1


def run(block, page, names):
    """Run one block with the names of the page; its line numbers are those of the page."""
    if block.language == "python":
        code = compile("\n" * block.line + block.source, str(page), "exec", dont_inherit=True)
        exec(code, names)
        return
    test = doctest.DocTestParser().get_doctest(block.source, names, page.name, str(page), 0)
    test.lineno = block.line
    failures = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    runner.run(test, out=failures.append, clear_globs=False)
    names.update(test.globs)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page, tmp_path, monkeypatch):
    """The blocks of the page run from top to bottom."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        run(block, page, names)


def test_blocks_are_found():
    """Python and console sessions are found, what is only to be read is not."""
    page = """
```python
x = 1
```
<!-- not run: needs a GPU -->
```python
y = 2
```
- item
  ```pycon
  >>> x
  1
  ```
```text
z
```
````{code-block} python
:emphasize-lines: 1
s = '''
```python
'''
````
"""
    assert list(blocks(page)) == [
        Block("python", 2, "x = 1\n"),
        Block("pycon", 10, ">>> x\n1\n"),
        Block("python", 17, "\ns = '''\n```python\n'''\n"),
    ]


# -- what the pages claim ----------------------------------------------------------------------------


def table_after(page, heading):
    """Return the rows of the first table below a heading, each cell without its code marks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = text.split(f"# {heading}\n", 1)[1].splitlines()
    rows = itertools.takewhile(
        lambda line: line.startswith("|"),
        itertools.dropwhile(lambda line: not line.startswith("|"), lines),
    )
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in cells[2:]]


ROWS = table_after("migration.md", "In place, and instead")


def sample():
    """Return the names that the rows of the table use."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 3), torch.rand(3, 3) + 1
    return {
        "x": x,
        "y": y,
        "mask": torch.tensor([True, False, True]).expand(3, 3).clone(),
        "idx": torch.tensor([[0], [2], [1]]),
        "rows": torch.tensor([0, 2]),
        "cols": torch.tensor([1, 1]),
        "batch": {"x": x, "ids": [1, 2]},
        "states": [x],
    }


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_in_place_and_instead(row):
    """Both sides give the same values; the left one writes what it was given, the right one nothing."""
    results, written = [], []
    for code in row:
        names = sample()
        given = {name: value for name, value in names.items() if name != "y"}
        before = copy.deepcopy(given)
        torch.manual_seed(1)
        exec(code, {"torch": torch, "F": torch.nn.functional}, names)
        results.append(names)
        written.append([name for name in given if not equal(given[name], before[name])])
    assert written[0]
    assert written[1] == []
    target = row[1].split(" =")[0]
    assert equal(results[0][target], results[1][target])


def equal(a, b):
    """Compare tensors, lists and dicts bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_there_are_enough_rows():
    """The table was found, and has the common writes."""
    assert len(ROWS) >= 25


def test_terminal_output_is_real(tmp_path):
    """The program of "My backward fails" prints what the page shows."""
    text = (ROOT / "docs" / "backward.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    shown = re.search(r"```console\n\$ (.*?)\n(.*?)```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *shown[1].split()[1:]],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    wanted = shown[2].replace("  ...\n", "...\n")
    printed = done.stderr.replace(f"{tmp_path}{os.sep}", "")
    if torch.__version__ >= "2.15":  # another operation writes a Python number
        printed = printed.replace("item assignment (fill_)", "item assignment (copy_)")
    assert doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS), printed


def test_logged_line_is_real(tmp_path):
    """The first program of the README logs what the README shows, and nothing else."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program, shown = re.search(r"```python\n(.*?)```.*?```text\n(.*?)```", text, re.DOTALL).groups()
    (tmp_path / "decoder.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "decoder.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace(f"{tmp_path}{os.sep}", "").split() == shown.split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Each relative link names a file, and each anchor in it a heading or label."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def anchors(text):
    """Return the anchors of a page: its labels, and its headings as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    spelled = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return spelled | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def test_every_source_file_is_on_the_tour():
    """The tour of the architecture names each file of the package."""
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    tour = text.split("# A tour of the sources")[1].split("# Beside the sources")[0]
    named = re.findall(r"`([\w*]+\.py)`", tour)
    files = [*PACKAGE.rglob("*.py"), PACKAGE.parent / "pytest_safemodule.py"]
    missing = [f.name for f in files if not any(fnmatch(f.name, pattern) for pattern in named)]
    assert missing == [], "add them to docs/contributing.md"
    assert [pattern for pattern in named if not any(fnmatch(f.name, pattern) for f in files)] == []


def test_every_public_name_is_in_the_reference():
    """The API page has an entry for each."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\.\. \S+:: (?:safemodule\.testing\.)?(\w+)$", text, re.MULTILINE)
    public = {*safemodule.__all__, *safemodule.testing.__all__} - {"__version__"}
    assert public - set(entries) == set()

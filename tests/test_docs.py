"""Every code block of the README and of the documentation runs.

The blocks of one page run in order and share their names, as a reader would type them:

- a ``python`` block runs, with warnings as errors;
- a ``pycon`` block runs as a doctest;
- any other block (``text``, ``console``) is for reading.

``<!-- not run: REASON -->`` on the line before keeps a block from running.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
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

"""Sphinx configuration: `make docs` builds with warnings as errors."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import runpy
from pathlib import Path

from safemodule._cli import main
from safemodule._version import __version__

project = "safemodule"
author = "The safemodule developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

# Pieces that other pages include.
exclude_patterns = ["_build", "_generated"]

# -- Markdown ----------------------------------------------------------------

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "smartquotes"]
myst_heading_anchors = 3

# -- API reference -----------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# One `:ivar:` line for each attribute; separate entries would need an annotation of their own.
napoleon_use_ivar = True
napoleon_custom_sections = [("Class keywords", "params_style")]
# Docstrings write `name` for anything in code.
default_role = "code"

# -- References --------------------------------------------------------------

nitpicky = True
# Links into other projects' pages need the network, and a build must not: only the published
# documentation has them. Without, names of the standard library and of torch stay plain text.
if os.environ.get("SAFEMODULE_DOCS_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|collections|typing|typing_extensions|contextlib|types|logging)\..*"),
    # builtins and names that annotations use unqualified
    (r"py:(class|exc|data|obj|meth)", r"[A-Z]?[a-z]+(Error|Warning)?"),
    (r"py:(class|obj)", r"safemodule\._\w+\._\w+"),  # type variables
    (r"py:(class|obj)", r"(Tensor|Any|Callable|Iterator|Mapping|Sequence|Generator|Path|_\w+)"),
]

# -- HTML --------------------------------------------------------------------

html_theme = "furo"
html_title = f"safemodule {release}"
html_static_path = ["_static"]
copybutton_exclude = ".linenos, .gp, .go"  # copy a console example without prompt and output

# -- Generated pieces --------------------------------------------------------

DOCS = Path(__file__).parent


def compatibility() -> str:
    """Return the compatibility tables, from the data that the tests are checked against."""
    file = DOCS.parent / "tests" / "compat" / "table.py"
    groups: dict[str, list[str]] = {}
    for row in runpy.run_path(str(file))["ROWS"]:
        issue = f" [PyTorch's own discussion]({row.issue})" if row.issue else ""
        modules = collections.Counter(test.split("::")[0] for test in row.tests)
        tests = ", ".join(f"{count} in `{module}.py`" for module, count in modules.items())
        cells = (row.feature, row.verdict, f"{row.note}{issue}", tests)
        line = " | ".join(cell.replace("|", "\\|") for cell in cells)
        groups.setdefault(row.group, []).append(f"| {line} |")
    parts: list[str] = []
    for group, lines in groups.items():
        parts += [
            f"## {group}",
            "| with | verdict | note | tests |\n| --- | --- | --- | --- |\n" + "\n".join(lines),
        ]
    return "\n\n".join(parts) + "\n"


def run_help() -> str:
    """Return what `safemodule run --help` prints."""
    os.environ["COLUMNS"] = "90"
    with io.StringIO() as out, contextlib.redirect_stdout(out):
        with contextlib.suppress(SystemExit):
            main(["run", "--help"])
        return out.getvalue()


def evidence() -> str:
    """Return the table of contents of the evidence; pages that `make` measures may not be there."""
    measured = [name for name in ("benchmarks", "models") if (DOCS / f"{name}.md").exists()]
    pages = ["compatibility", "protected", "limits", *measured, "comparison"]
    return "\n".join(("```{toctree}", ":maxdepth: 1", ":caption: Evidence", "", *pages, "```", ""))


def write_if_changed(path: Path, text: str) -> None:
    """Write a file, and leave its date alone where nothing is new: Sphinx builds only what is."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


write_if_changed(DOCS / "_generated" / "compatibility.md", compatibility())
write_if_changed(DOCS / "_generated" / "run-help.txt", run_help())
write_if_changed(DOCS / "_generated" / "evidence.md", evidence())

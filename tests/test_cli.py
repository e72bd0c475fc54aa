"""The command line: what it accepts, refuses and passes on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from safemodule import __version__, _cli
from tests.launcher import plain


@pytest.fixture
def calls(monkeypatch):
    """Note what would be run, instead of running it."""
    seen = []

    def run(target, args, **options):
        seen.append((target, args, options))
        return 7

    monkeypatch.setattr(_cli, "run", run)
    return seen


DEFAULTS = {"module": False, "mode": None, "explaining": True, "report": None}


@pytest.mark.parametrize(
    ("argv", "target", "args", "options"),
    [
        ("run train.py", "train.py", [], {}),
        ("run train.py --mode strict -m x --help", "train.py",
         ["--mode", "strict", "-m", "x", "--help"], {}),
        ("run --mode strict --no-explain train.py a", "train.py", ["a"],
         {"mode": "strict", "explaining": False}),
        ("run --explain train.py", "train.py", [], {}),
        ("run -m pkg.train --epochs 3", "pkg.train", ["--epochs", "3"], {"module": True}),
        ("run --report out.json -m train -- -x", "train", ["--", "-x"],
         {"module": True, "report": Path("out.json")}),
        ("run --report=./out.HTML train.py", "train.py", [], {"report": Path("./out.HTML")}),
        ("run -- train.py -x", "train.py", ["-x"], {}),
    ],
)  # fmt: skip
def test_run_splits_the_arguments(calls, argv, target, args, options):
    """Options before the program are ours; everything after it is the program's."""
    assert _cli.main(argv.split()) == 7
    assert calls == [(target, args, DEFAULTS | options)]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("walk", "invalid choice: 'walk'"),
        ("run", "which program? SCRIPT.py or -m MODULE is missing"),
        ("run -m", "which program?"),
        ("run --mode", "argument --mode: expected one argument"),
        ("run --mode loud train.py", "argument --mode: invalid choice: 'loud'"),
        ("run --report out.txt train.py", "'out.txt' must end in .json, .html, .sarif"),
        ("run --report json train.py", "'json' must end in .json, .html, .sarif"),
        ("run --report nowhere/out.json train.py", "there is no folder 'nowhere'"),
        ("run --nothing train.py", "unrecognized arguments: --nothing"),
        ("run --rep out.json train.py", "unrecognized arguments: --rep"),
    ],
)
def test_usage_errors(calls, capsys, argv, text):
    """They end with status 2 before anything runs, and say what is wrong."""
    with pytest.raises(SystemExit) as stop:
        _cli.main(argv.split())
    assert stop.value.code == 2
    assert calls == []
    message = capsys.readouterr().err
    assert text in message
    assert message.startswith("usage: safemodule")


def test_help_is_enough(capsys):
    """It names each option, each mode and a way to start."""
    with pytest.raises(SystemExit) as stop:
        _cli.main(["run", "--help"])
    assert not stop.value.code
    text = capsys.readouterr().out
    for word in ("--mode", "--no-explain", "--report", ".sarif", "-m", "strict", "SAFEMODULE_MODE"):
        assert word in text
    assert "safemodule run --mode strict train.py" in text
    assert max(map(len, text.splitlines())) <= 100
    with pytest.raises(SystemExit):
        _cli.main(["--help"])
    text = capsys.readouterr().out
    assert "run " in text
    assert "demo" in text


def test_command_after_a_dash(capsys):
    """The command is the first word."""
    with pytest.raises(SystemExit) as stop:
        _cli.main(["--", "run", "train.py"])
    assert stop.value.code == 2
    assert "safemodule: error: " in capsys.readouterr().err


def test_version(capsys):
    """As a reader of an error report wants it."""
    with pytest.raises(SystemExit):
        _cli.main(["--version"])
    assert capsys.readouterr().out == f"safemodule {__version__}\n"


def test_arguments_of_the_process(calls, monkeypatch):
    """They are the default, for `python -m safemodule` and the console script."""
    monkeypatch.setattr(sys, "argv", ["safemodule", "run", "train.py", "x"])
    assert _cli.main() == 7
    assert calls == [("train.py", ["x"], DEFAULTS)]
    with pytest.raises(SystemExit) as stop:
        # By path: what pytest rewrites, as it does for an installed plugin, runpy cannot load.
        runpy.run_path(str(Path(_cli.__file__).with_name("__main__.py")), run_name="__main__")
    assert stop.value.code == 7


def test_demo_gets_its_own_arguments(monkeypatch):
    """It has options of its own."""
    import safemodule._demo

    seen = []
    monkeypatch.setattr(safemodule._demo, "main", lambda argv: seen.append(argv) or 0)
    assert _cli.main(["demo", "--steps", "2"]) == 0
    assert seen == [["--steps", "2"]]


def test_console_script(tmp_path):
    """The installed command runs a program as Python would: its folder comes first, not the script's."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "program.py").write_text("import helper, sys; print(helper, sys.argv)")
    (tmp_path / "there" / "helper.py").write_text("")
    command = Path(sys.executable).with_name("safemodule")
    done = plain(command, "run", "there/program.py", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"<module 'helper' from '{tmp_path}/there/helper.py'> ['there/program.py', 'a']\n"
    )

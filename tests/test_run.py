"""`safemodule run`: the program is unchanged, and what it does in place is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

import safemodule
from safemodule import _run
from tests.launcher import Launcher, plain

PACKAGE = Path(safemodule.__file__).parent


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Run the command line."""
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.close()


def program(folder, text, name="program.py"):
    """Write a program to a file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.lstrip("\n"))
    return path


# What a program can see of how it was started.
LOOK = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, __doc__, type(__loader__).__name__)
print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals(), type(__builtins__))
print(sorted(name for name in globals() if name != "__annotations__"))
print(repr(sys.stdin.read()), flush=True)
print("to stderr", file=sys.stderr)
"""


def same(launched, expected):
    """Assert that a program did what it does under Python itself."""
    assert launched.own == expected.stderr
    assert launched.stdout == expected.stdout
    assert launched.returncode == expected.returncode


@pytest.mark.parametrize(
    "target", ["program.py", "sub/inner.py", "{here}/program.py", "link.py", "sub", "app.zip"]
)
def test_a_script_sees_what_it_always_sees(launch, tmp_path, target):
    """Its name, file, arguments, path and standard input; also a folder's and an archive's."""
    program(tmp_path, LOOK)
    program(tmp_path, LOOK, "sub/inner.py")
    program(tmp_path, LOOK, "sub/__main__.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "inner.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", LOOK)
    argv = [target.format(here=tmp_path), "a b", "--mode", "x", "-m", "--help"]
    same(
        launch("run", *argv, cwd=tmp_path, stdin="told\n"),
        plain(*argv, cwd=tmp_path, stdin="told\n"),
    )


@pytest.mark.parametrize("target", ["program", "package", "package.inner"])
def test_a_module_sees_what_it_always_sees(launch, tmp_path, target):
    """As `python -m`, a package included."""
    program(tmp_path, LOOK)
    program(tmp_path, "import sys; print(sys.argv)", "package/__init__.py")
    program(tmp_path, LOOK, "package/__main__.py")
    program(tmp_path, LOOK, "package/inner.py")
    argv = ["-m", target, "-m", "--explain"]
    same(launch("run", *argv, cwd=tmp_path), plain(*argv, cwd=tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit()",
        "raise SystemExit(True)",
        "import os; print('x', flush=True); os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "raise KeyboardInterrupt",
        "x = (",
        "raise ValueError('mine')",
        "import nothing_of_the_kind",
        """
def inner():
    raise KeyError("a")
def outer():
    try:
        inner()
    except KeyError as error:
        raise RuntimeError("b") from error
try:
    outer()
except RuntimeError:
    [][1]
""",
        "raise ExceptionGroup('both', [ValueError(1), TypeError(2)])",
        """
import sys
def hook(kind, value, tb):
    print("hooked", kind, value, tb.tb_lineno, tb.tb_next)
sys.excepthook = hook
1 / 0
""",
        """
import atexit, sys, threading, time
atexit.register(print, "exit function")
def work():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=work).start()
sys.exit(4)
""",
        """
import warnings
warnings.simplefilter("always")
warnings.warn("mine")
import logging
logging.basicConfig(format="%(name)s %(message)s")
logging.getLogger("safemodule").warning("theirs")
""",
    ],
)
def test_a_program_ends_as_it_always_ends(launch, tmp_path, text):
    """Exit status, signal, traceback and messages are its own."""
    path = program(tmp_path, text)
    same(launch("run", path, cwd=tmp_path), plain(path, cwd=tmp_path))


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["nothing.py"], 2),
        (["-m", "nothing"], 1),
        (["-m", "package.nothing"], 1),
        (["-m", "nothing.inner"], 1),
        (["-m", "package"], 1),
        (["-m", "a..b"], 1),
        (["package"], 1),
    ],
)
def test_there_is_no_such_program(launch, tmp_path, argv, code):
    """Python's own words and status, under the name of the command."""
    program(tmp_path, "", "package/__init__.py")
    done, expected = launch("run", *argv, cwd=tmp_path), plain(*argv, cwd=tmp_path)
    assert done.returncode == expected.returncode == code
    assert done.stderr.partition(": ")[0] == "safemodule"
    assert done.stderr.partition(": ")[2] == expected.stderr.partition(": ")[2]
    assert done.stdout == ""


def test_an_error_while_a_package_is_imported(launch, tmp_path):
    """It is the program's, and shown from its own lines on."""
    program(tmp_path, "import nothing_of_the_kind", "package/__init__.py")
    program(tmp_path, "", "package/inner.py")
    done = launch("run", "-m", "package.inner", cwd=tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_the_kind'" in done.stderr
    assert "safemodule" not in done.stderr


WRITES = """
import sys, threading, torch
class Shift(torch.nn.Module):
    def forward(self, x, batch):
        x += 1
        if batch["left"]:
            batch["mask"][:] = True
            batch["left"] = 0
        return x
shift, x = Shift(), torch.zeros(3)
def work(n):
    for _ in range(n):
        shift(x, {"mask": torch.zeros(2), "left": 0})
thread = threading.Thread(target=work, args=(5,))
thread.start(); thread.join()
work(2)
shift(x, {"mask": torch.zeros(2), "left": 1})
print(x.tolist())
"""


def test_the_table(launch, tmp_path):
    """Who wrote what where, most frequent first, in all threads; the caller's tensor is untouched."""
    program(tmp_path, WRITES)
    done = launch("run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.own) == (0, "[0.0, 0.0, 0.0]\n", "")
    head, *rows, total = done.told.splitlines()
    assert head.split() == [
        "count",
        "op",
        "argument",
        "tensor",
        "copied",
        "module",
        "where",
        "line",
    ]
    assert [re.split(r"  +", row.strip()) for row in rows] == [
        ["8", "add_", "x", "float32[3] cpu", "96 B", "__main__.Shift", "program.py:4 in forward", "x += 1"],
        ["1", "__setitem__", "batch['mask']", "float32[2] cpu", "8 B", "__main__.Shift",
         "program.py:6 in forward", 'batch["mask"][:] = True'],
        ["1", "__setitem__", "batch['left']", "0 B", "__main__.Shift", "program.py:7 in forward",
         'batch["left"] = 0'],
    ]  # fmt: skip
    assert total == "3 sites, 10 writes, 104 B copied."


def test_nothing_written(launch, tmp_path):
    """The table says so."""
    program(tmp_path, "print(1)")
    done = launch("run", "program.py", cwd=tmp_path)
    assert (done.stdout, done.told) == ("1\n", "No argument was written.\n")


def test_modes(launch, tmp_path):
    """Mode strict fails at the line, with the program's own traceback; off does nothing at all."""
    program(tmp_path, WRITES)
    done = launch("run", "--mode", "strict", "program.py", cwd=tmp_path)
    assert done.returncode == 1
    thread, _, main = done.own.partition("  4. mode=")
    assert thread.startswith("Exception in thread Thread-1 (work):\n")
    assert f'  File "{tmp_path}/program.py", line 15, in <module>\n' in main
    for text in (thread, main):
        at_fault = (
            f'  File "{tmp_path}/program.py", line 4, in forward\n    x += 1\nsafemodule.Input'
        )
        assert text.count(at_fault) == 1
        assert "/safemodule/" not in text
    assert "Refused:\n" in done.told
    done = launch("run", "--mode", "off", "program.py", cwd=tmp_path)
    assert done.stdout == "[8.0, 8.0, 8.0]\n"
    assert done.told == "No argument was written.\n"
    done = launch("run", "--mode=warn", "program.py", cwd=tmp_path)
    assert done.returncode == 1  # the launcher runs with -W error
    assert "InputMutationWarning: add_ wrote argument x" in done.own


def test_mode_against_the_program(launch, tmp_path):
    """A block of the program's own is nearer; what it guards without saying how follows the option."""
    text = """
import torch
from safemodule import get_mode, mode, freeze_inputs
@freeze_inputs
def write(x):
    return x.add_(1)
print(get_mode())
with mode("copy"):
    write(torch.zeros(2))
write(torch.zeros(2))
"""
    program(tmp_path, text)
    done = launch("run", "--mode", "strict", "program.py", cwd=tmp_path)
    assert done.stdout == "strict\n"
    assert "line 9, in <module>" in done.own
    assert "InputMutationError" in done.own


SAVED = """
import torch

weight = torch.ones(3, requires_grad=True)


def step():
    t = weight.exp()
    y = (t * t).sum()
    t[:] = 3.0
    return y


step().backward()
"""


def test_an_in_place_error_names_both_lines(launch, tmp_path):
    """Who saved the value, who wrote it, and what to do."""
    program(tmp_path, SAVED)
    done = launch("run", "program.py", cwd=tmp_path)
    assert done.returncode == 1
    text = done.own
    assert re.search(r"`t` \(float32\[3\] cpu\)", text)
    assert re.search(r"saved for backward .*\n\s+program\.py:8 in step\n\s+y = \(t \* t\)", text)
    assert re.search(r"written by .*\n\s+program\.py:9 in step\n\s+t\[:\] = 3\.0", text)
    assert text.count("Possible fixes") == 1
    assert "/safemodule/" not in text
    assert text.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/program.py", line 13'
    )


def test_an_explanation_that_the_program_hides(launch, tmp_path):
    """It is printed after the traceback where the program raises another error in its place."""
    hidden = SAVED.replace(
        "step().backward()",
        """
try:
    step().backward()
except RuntimeError:
    raise SystemError("training failed") from None
""",
    )
    program(tmp_path, hidden)
    done = launch("run", "program.py", cwd=tmp_path)
    traceback, _, explanation = done.own.partition("SystemError: training failed\n")
    assert "Possible fixes" not in traceback
    assert explanation.count("program.py:8 in step") == 1
    assert explanation.count("program.py:9 in step") == 1


def test_without_explanations(launch, tmp_path):
    """The error is PyTorch's own."""
    program(tmp_path, SAVED)
    done = launch("run", "--no-explain", "program.py", cwd=tmp_path)
    assert done.own.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/program.py"'
    )
    assert "\nRuntimeError: one of the variables needed" in done.own
    assert str(PACKAGE) not in done.own
    assert "Possible fixes" not in done.own


def test_reports(launch, tmp_path):
    """By suffix, where the option said, also if the program goes to another folder."""
    program(tmp_path, "import os\nos.chdir('/')\n" + WRITES.lstrip() + SAVED)
    for suffix in ("json", "html", "SARIF"):
        done = launch("run", "--report", f"report.{suffix}", "program.py", "arg", cwd=tmp_path)
        assert done.returncode == 1
        assert done.told.endswith(f"\nReport: {tmp_path}/report.{suffix}\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["program"] == ["program.py", "arg"]
    assert report["status"] == 1
    assert [(m["filename"], m["lineno"], m["count"]) for m in report["mutations"]] == [
        ("program.py", 6, 8), ("program.py", 8, 1), ("program.py", 9, 1)
    ]  # fmt: skip
    (explanation,) = report["explanations"]
    assert [event["filename"] for event in explanation["events"]] == ["program.py"] * 2
    assert "x += 1" in (tmp_path / "report.html").read_text()
    sarif = json.loads((tmp_path / "report.SARIF").read_text())
    rules = [result["ruleId"] for result in sarif["runs"][0]["results"]]
    assert rules == ["input-mutation"] * 2 + ["container-mutation", "inplace-error"]


def test_a_report_that_cannot_be_written(launch, tmp_path):
    """The table is shown all the same, and the exit status is the program's."""
    (tmp_path / "there").mkdir()
    program(tmp_path, "import os, sys; os.rmdir('there'); sys.exit(5)")
    done = launch("run", "--report", "there/report.json", "program.py", cwd=tmp_path)
    assert done.returncode == 5
    assert "The report could not be written: " in done.told
    assert "No argument was written." in done.told


def test_children(launch, tmp_path):
    """Forked children are guarded too, and only the program itself tells what was found."""
    text = """
import multiprocessing, os, sys, torch
class Shift(torch.nn.Module):
    def forward(self, x):
        return x.add_(1)
def work(queue):
    x = torch.zeros(2)
    Shift()(x)
    queue.put(x.tolist())
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
child = context.Process(target=work, args=(queue,))
child.start()
print(queue.get())
child.join()
child = os.fork()
if child == 0:
    sys.exit(6)
print(child.exitcode if not isinstance(child, int) else os.waitpid(child, 0)[1] >> 8)
"""
    program(tmp_path, text)
    done = launch("run", "--report", "report.json", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0]\n6\n")
    assert done.stderr.count("safemodule: input mutations") == 1


def test_a_program_that_puts_its_own_streams(launch, tmp_path):
    """The table goes to the process's stderr; where that is closed, nowhere."""
    program(tmp_path, "import io, sys; sys.stderr = io.StringIO(); sys.stdout = None")
    assert launch("run", "program.py", cwd=tmp_path).told == "No argument was written.\n"
    program(tmp_path, "import sys; sys.stderr.close()")
    done = launch("run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_log_is_quiet(launch, tmp_path):
    """What is in the table is not logged as well; what the program logs is."""
    program(tmp_path, "import logging\nlogging.basicConfig(level=10)\n" + WRITES.lstrip())
    done = launch("run", "program.py", cwd=tmp_path)
    assert done.own == ""
    assert done.told.count("x += 1") == 1


# -- processes of their own --------------------------------------------------------------------------


def test_as_a_module(tmp_path):
    """`python -m safemodule` is the command, and starts processes that import the script anew."""
    text = """
import multiprocessing
def work(x):
    return x + 1
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]), __file__)
"""
    path = program(tmp_path, text)
    done = plain("-m", "safemodule", "run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.own) == (0, f"[2, 3] {path}\n", "")
    assert done.told == "No argument was written.\n"


@pytest.mark.skipif(os.name == "nt", reason="there, a process cannot be sent Ctrl-C alone")
def test_ctrl_c(tmp_path):
    """The process ends by the signal, as Python does, with its own traceback, and tells what it found."""
    program(tmp_path, WRITES + "print('ready', flush=True)\nimport time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "safemodule", "run", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell without job control ignores it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- no threads
    )
    assert process.stdout.readline() == "[0.0, 0.0, 0.0]\n"
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    traceback, _, told = stderr.partition("\nsafemodule: input mutations\n")
    # The signal may come before the next line has begun.
    assert re.match(
        r'Traceback .*:\n  File ".*/program\.py", line (18|19|20), in <module>\n', traceback
    )
    assert "/safemodule/" not in traceback
    assert traceback.endswith("KeyboardInterrupt\n")
    assert "3 sites, 10 writes" in told


def test_a_thread_that_ends_without_an_error(monkeypatch):
    """What shows errors of threads is asked about it as ever."""
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    _run._clean_those_of_threads()
    args = threading.ExceptHookArgs((SystemExit, None, None, None))
    threading.excepthook(args)
    assert seen == [args]


def test_a_child_that_was_forked_is_silent(capfd):
    """The parent speaks for both."""
    session = _run._Session("program.py", [], None, None)
    session._finish()
    assert "No argument was written" in capfd.readouterr().err
    session._process = -1  # that of another
    session._finish()
    assert capfd.readouterr().err == ""

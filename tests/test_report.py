"""Reports: logs, logging, warnings and errors."""

from __future__ import annotations

import linecache
import logging
import logging.handlers
import pickle
import queue
import subprocess
import sys
import threading
import warnings

import pytest

from safemodule import _report
from safemodule._errors import InputMutationError, InputMutationWarning
from safemodule._location import Location, locate
from safemodule._record import Mutation, record
from safemodule._report import export, forget_sites, mutation, refuse, report, unseen

HERE = Location(__file__, 1, "forward", __name__)
THIS_LINE = '"""Reports: logs, logging, warnings and errors."""'
FIELDS = {
    "op": "add_",
    "argument": "batch['mask']",
    "module": "pkg.Decoder",
    "shape": (1024, 21),
    "dtype": "torch.bool",
    "device": "cuda:0",
    "location": Location("/src/net.py", 12, "forward", "pkg.net"),
    "bytes_copied": 21504,
}
WRITE = Mutation(
    op="add_",
    argument="batch['mask']",
    module="pkg.Decoder",
    shape=(1024, 21),
    dtype="bool",
    device="cuda:0",
    filename="/src/net.py",
    lineno=12,
    function="forward",
    line="",
    bytes_copied=21504,
)
STORY = (
    "add_ wrote argument batch['mask'] (bool[1024, 21] cuda:0) of pkg.Decoder at /src/net.py:12 in"
    " forward -- in a copy of 21.0 KiB; the caller's tensor is unchanged"
)


@pytest.fixture(autouse=True)
def _fresh():
    """Let each test see its first write as the first."""
    forget_sites()
    yield
    forget_sites()


def levels(caplog):
    """Return the level names of what was logged."""
    return [entry.levelname for entry in caplog.records]


def test_mutation_takes_plain_metadata():
    """Names lose torch's prefix; the shape becomes a plain tuple."""
    assert mutation(**FIELDS) == WRITE
    assert mutation(**FIELDS | {"shape": [1024, 21], "dtype": "bool"}) == WRITE


def test_mutation_reads_the_source_line():
    """The line is that of the location, unless the caller knows it."""
    assert mutation(**FIELDS | {"location": HERE}).line == THIS_LINE
    assert mutation(**FIELDS | {"location": HERE}, line="known").line == "known"


def test_mutation_of_a_container_entry():
    """There is no tensor to describe."""
    m = mutation(
        **FIELDS | {"op": "pop", "shape": (), "dtype": "", "device": "", "kind": "container"}
    )
    assert (m.kind, m.tensor) == ("container", "")


@pytest.mark.parametrize("mode", ["copy", "warn"])
@pytest.mark.filterwarnings("ignore::safemodule._errors.InputMutationWarning")
def test_goes_to_every_active_log(mode):
    """Nested logs all see it, before and after the site is known."""
    with record() as outer:
        report(mode, **FIELDS)
        with record() as inner:
            report(mode, **FIELDS | {"bytes_copied": 1})
            report(mode, **FIELDS | {"bytes_copied": 1})
    assert [(m.count, m.bytes_copied) for m in outer] == [(3, 21506)]
    assert [(m.count, m.bytes_copied) for m in inner] == [(2, 2)]
    assert inner[0].shape == (1024, 21)


def test_logged_once_per_site(caplog):
    """WARNING the first time, then nothing at the default level."""
    for _ in range(3):
        report("copy", **FIELDS)
    assert levels(caplog) == ["WARNING"]


def test_logged_at_debug_after_the_first(caplog):
    """Who asks for DEBUG sees each write."""
    caplog.set_level(logging.DEBUG, "safemodule")
    for n in (1, 2, 3):
        report("copy", **FIELDS | {"bytes_copied": n})
    assert levels(caplog) == ["WARNING", "DEBUG", "DEBUG"]
    assert [entry.safemodule_mutation.bytes_copied for entry in caplog.records] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"location": Location("/src/other.py", 12, "forward")}, True),
        ({"location": Location("/src/net.py", 13, "forward")}, True),
        ({"op": "mul_"}, True),
        ({"argument": "x"}, True),
        ({"module": "pkg.Other"}, False),
        ({"shape": (7, 21)}, False),
    ],
)
def test_site_is_file_line_op_and_argument(caplog, changes, again):
    """Another of these is worth another WARNING; another module or shape is not."""
    report("copy", **FIELDS)
    with record() as log:
        report("copy", **FIELDS | changes)
    assert levels(caplog) == ["WARNING"] * (1 + again)
    assert [m.count for m in log] == [1]


def test_log_entry(caplog):
    """The entry stands at the user's line and carries the record."""
    report("copy", **FIELDS)
    (entry,) = caplog.records
    assert entry.name == "safemodule"
    assert (entry.pathname, entry.filename, entry.lineno) == ("/src/net.py", "net.py", 12)
    assert entry.funcName == "forward"
    assert entry.safemodule_mutation == WRITE
    assert entry.getMessage() == STORY


def test_log_entry_with_percent_sign(caplog):
    """A source line may hold what looks like a format."""
    report("copy", **FIELDS | {"argument": "d['%s %d']"})
    assert "d['%s %d']" in caplog.records[0].getMessage()


def test_log_entry_of_a_container(caplog):
    """It speaks of the container, not of bytes."""
    report(
        "copy",
        **FIELDS | {"op": "pop", "shape": (), "dtype": "", "device": "", "bytes_copied": 0},
        kind="container",
    )
    assert caplog.records[0].getMessage() == (
        "pop changed argument batch['mask'] of pkg.Decoder at /src/net.py:12 in forward"
        " -- in a copy; the caller's container is unchanged"
    )


def test_log_entry_can_be_queued():
    """The entry may go to another process."""
    sent = queue.SimpleQueue()
    logger = logging.getLogger("safemodule")
    handler = logging.handlers.QueueHandler(sent)
    logger.addHandler(handler)
    try:
        report("copy", **FIELDS)
    finally:
        logger.removeHandler(handler)
    assert pickle.loads(pickle.dumps(sent.get_nowait())).getMessage() == STORY


def test_logging_is_left_as_it_is():
    """No handler, no level, no propagation change: that is the application's business."""
    report("copy", **FIELDS)
    logger = logging.getLogger("safemodule")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.NOTSET, True)


def test_switched_off_logger_logs_nothing(caplog):
    """An application that silences the logger hears nothing, and records go on."""
    caplog.set_level(logging.ERROR, "safemodule")
    with record() as log:
        report("copy", **FIELDS)
    assert (levels(caplog), len(log)) == ([], 1)


def test_shows_on_stderr_by_default():
    """Without any logging set up, Python's last resort prints the WARNING, once."""
    script = (
        "from safemodule._location import locate\n"
        "from safemodule._report import report\n"
        "for _ in range(2):\n"
        "    report('copy', op='add_', argument='x', module='pkg.Net', shape=(3,), dtype='float32',"
        " device='cpu', location=locate(), bytes_copied=12)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    # Python 3.13 and later know the source of `-c`, and the line is shown.
    line = ": " + script.splitlines()[3].strip() if sys.version_info >= (3, 13) else ""
    assert done.stdout == ""
    assert done.stderr == (
        f"add_ wrote argument x (float32[3] cpu) of pkg.Net at <string>:4 in <module>{line}"
        " -- in a copy of 12 B; the caller's tensor is unchanged\n"
    )


def test_known_site_makes_no_record(monkeypatch):
    """The second write of a site with nobody watching costs no record."""
    made = []
    original = _report.mutation
    monkeypatch.setattr(_report, "mutation", lambda *a, **kw: made.append(kw) or original(*a, **kw))
    report("copy", **FIELDS)
    report("copy", **FIELDS)
    with record() as log:
        report("copy", **FIELDS)  # the log has to learn the site
        report("copy", **FIELDS)
    assert len(made) == 2
    assert log[0].count == 2


def warn_here(**changes):
    """Report a write in mode "warn", as if this line had made it."""
    report("warn", **FIELDS | {"location": locate()} | changes)


def test_warning_points_at_the_user_line():
    """File and line are those of the write, and the record comes along."""
    with pytest.warns(InputMutationWarning) as caught:
        warn_here()
    (warning,) = caught
    assert warning.filename == __file__
    assert linecache.getline(__file__, warning.lineno).lstrip().startswith('report("warn"')
    assert warning.message.mutation.lineno == warning.lineno
    assert "add_ wrote argument batch['mask'] (bool[1024, 21] cuda:0)" in str(warning.message)


def test_warning_comes_with_log_and_record(caplog):
    """Mode "warn" is mode "copy" and a warning."""
    with pytest.warns(InputMutationWarning), record() as log:
        warn_here()
    assert (levels(caplog), len(log)) == (["WARNING"], 1)


def test_mode_copy_warns_nobody():
    """The default mode raises no Python warning; here each would be an error."""
    report("copy", **FIELDS)
    report("copy", **FIELDS)


@pytest.mark.parametrize(
    ("action", "shown"), [("default", 1), ("once", 1), ("always", 3), ("ignore", 0)]
)
def test_warning_obeys_the_filters(action, shown):
    """Python's own rules for repetition hold, though the batch size changes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action, InputMutationWarning)
        for rows in (1, 2, 3):
            warn_here(shape=(rows, 21))
    assert len(caught) == shown


@pytest.mark.parametrize(("module", "shown"), [(__name__, 0), ("another", 1)])
def test_warning_can_be_filtered_by_module(module, shown):
    """A filter names the module that writes, not this package."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=InputMutationWarning, module=f"{module}$")
        warn_here()
    assert len(caught) == shown


def test_warning_is_noted_in_the_registry_of_the_module():
    """What was shown is noted where warnings.warn notes it, so resetting works as usual."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("default")
        warn_here()
    assert any(
        isinstance(key, tuple) and key[1] is InputMutationWarning
        for key in globals()["__warningregistry__"]
    )


def test_warning_of_an_unknown_module():
    """An executed string has no module: the warning comes all the same, once."""
    where = Location("<string>", 3, "<module>", "no.such.module")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            report("warn", **FIELDS | {"location": where})
            report("warn", **FIELDS | {"location": where._replace(module="")})
    assert [(w.filename, w.lineno) for w in caught] == [("<string>", 3)]


def test_warning_made_an_error_raises_cleanly(caplog):
    """The error is the warning itself; the write is on record, and the next is reported again."""
    with record() as log:
        for _ in range(2):
            with pytest.raises(InputMutationWarning, match="add_ wrote argument") as caught:
                warn_here()
            assert caught.value.mutation.op == "add_"
            assert caught.value.__cause__ is caught.value.__context__ is None
    assert (log[0].count, levels(caplog)) == (2, ["WARNING"])


def test_refusal():
    """What would change which argument of which module where, and how to say it otherwise."""
    with pytest.raises(InputMutationError) as caught:
        refuse(**FIELDS | {"op": "__setitem__", "location": HERE})
    assert str(caught.value) == (
        "__setitem__ would write argument batch['mask'] (bool[1024, 21] cuda:0) of pkg.Decoder\n"
        f"  at {__file__}:1 in forward: {THIS_LINE}\n"
        "Nothing has changed. Possible fixes, best first:\n"
        "  1. mask = batch['mask'].clone() before the write\n"
        "  2. mask = torch.where(condition, value, batch['mask'])\n"
        "  3. mask = batch['mask'].masked_fill(condition, value)\n"
        "  4. mask = batch['mask'].index_put((indices,), value)\n"
        '  5. if the caller is meant to see it, batch: Mutable[...], or mutable=("batch",)\n'
        '  6. mode="copy": the write goes to a copy, the caller\'s tensor stays as it is'
    )
    assert caught.value.mutation.op == "__setitem__"
    assert caught.value.mutation.line == THIS_LINE


def test_refusal_of_a_container_entry_without_source():
    """No tensor, no source line, no empty brackets."""
    with pytest.raises(InputMutationError) as caught:
        refuse(
            **FIELDS | {"op": "pop", "shape": (), "dtype": "", "device": "", "module": ""},
            kind="container",
        )
    assert str(caught.value).splitlines()[:4] == [
        "pop would change argument batch['mask']",
        "  at /src/net.py:12 in forward",
        "Nothing has changed. Possible fixes, best first:",
        "  1. read batch['mask'] and leave it in",
    ]


def test_refusal_is_no_write(caplog):
    """What did not happen is neither recorded nor logged."""
    with record() as log, pytest.raises(InputMutationError):
        refuse(**FIELDS)
    assert (len(log), levels(caplog)) == (0, [])


def test_export_goes_to_copies(caplog):
    """Raw memory handed out is noted apart, and logged at DEBUG only."""
    export(**FIELDS | {"op": "numpy"})
    with record() as log:
        export(**FIELDS | {"op": "numpy"})
        export(**FIELDS | {"op": "numpy"})
    assert (len(log), levels(caplog)) == (0, [])
    assert [(m.op, m.kind, m.count, m.bytes_copied) for m in log.copies] == [
        ("numpy", "export", 2, 43008)
    ]
    caplog.set_level(logging.DEBUG, "safemodule")
    export(**FIELDS | {"op": "numpy"})
    assert levels(caplog) == ["DEBUG"]
    assert caplog.records[0].getMessage() == (
        "numpy handed out the memory of argument batch['mask'] (bool[1024, 21] cuda:0) of"
        " pkg.Decoder at /src/net.py:12 in forward -- 21.0 KiB copied first"
    )


def test_memory_of_sites_is_bounded(monkeypatch, caplog):
    """A program that makes new lines for ever does not fill the memory; the oldest is forgotten."""
    monkeypatch.setattr(_report, "_SITES_MAX", 4)
    for lineno in range(1, 11):
        report("copy", **FIELDS | {"location": Location("<cell>", lineno, "f")})
    assert len(_report._sites) == len(_report._logged) == 4
    assert len(caplog.records) == 10
    report("copy", **FIELDS | {"location": Location("<cell>", 10, "f")})
    assert len(caplog.records) == 10
    report("copy", **FIELDS | {"location": Location("<cell>", 1, "f")})
    assert len(caplog.records) == 11


@pytest.fixture
def _eager_threads():
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_eager_threads")
def test_first_write_from_many_threads_is_logged_once(caplog):
    """Of threads that reach a line together, one logs the WARNING."""
    start = threading.Barrier(8)

    def work():
        start.wait()
        for lineno in range(200):
            report("copy", **FIELDS | {"location": Location("/src/net.py", lineno, "f")})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.lineno for entry in caplog.records) == list(range(200))


def test_quiet_is_when_a_report_would_change_nothing(caplog):
    """A known site, no log and no DEBUG: the mechanism need not even ask for the metadata."""
    where = ("add_", "batch['mask']", "pkg.Decoder", FIELDS["location"])
    assert not _report.is_quiet(*where)
    report("copy", **FIELDS)
    assert _report.is_quiet(*where)
    assert not _report.is_quiet("mul_", *where[1:])
    with record():
        assert not _report.is_quiet(*where)
    caplog.set_level(logging.DEBUG, "safemodule")
    assert not _report.is_quiet(*where)


UNSEEN = FIELDS | {"op": "(unseen)", "bytes_copied": 0}


def test_unseen_write_is_reported_as_what_it_is(caplog):
    """The caller's tensor has changed: the text must not say otherwise."""
    with record() as log:
        unseen("copy", **UNSEEN)
    assert [(m.op, m.kind, m.bytes_copied) for m in log] == [("(unseen)", "unseen", 0)]
    assert caplog.records[0].getMessage() == (
        "argument batch['mask'] (bool[1024, 21] cuda:0) of pkg.Decoder was written by code that"
        " PyTorch's Python layer does not see (a scripted function, a C++ extension, memory exported"
        " earlier); the caller's tensor has changed, in the call of forward (/src/net.py:12)"
    )


def test_unseen_write_warns():
    """Mode "warn" warns of it like of any other."""
    with pytest.warns(InputMutationWarning, match="does not see"):
        unseen("warn", **UNSEEN)


def test_unseen_write_is_an_error_in_strict_mode():
    """It is too late to refuse it, not too late to say so."""
    with pytest.raises(InputMutationError) as caught:
        unseen("strict", **UNSEEN)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("; the caller's tensor has changed")
    assert lines[1:] == [
        "  at /src/net.py:12 in forward",
        "Possible fixes, best first:",
        "  1. batch['mask'].clone() for the code that writes it",
        '  2. if the caller is meant to see it, batch: Mutable[...], or mutable=("batch",)',
    ]
    assert caught.value.mutation.kind == "unseen"


def test_moved_memory_is_said(caplog):
    """Who kept an address of the old copy has to know."""
    _report.moved("data_ptr", "x", "pkg.Net", FIELDS["location"])
    assert levels(caplog) == ["WARNING"]
    assert caplog.records[0].getMessage() == (
        "argument x of pkg.Net moves to a fresh copy at /src/net.py:12, because autograd saved its"
        " value; memory that data_ptr handed out before keeps that value"
    )

"""Records and logs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import sys
import threading
import typing
from collections.abc import Sequence

import pytest

from safemodule._record import Mutation, MutationLog, active_logs, record, record_everywhere
from safemodule._table import describe, format_bytes


def write(**changes):
    """Return a record of one write."""
    fields = {
        "op": "add_",
        "argument": "batch['mask']",
        "module": "pkg.Decoder",
        "shape": (1024, 21),
        "dtype": "bool",
        "device": "cuda:0",
        "filename": "/src/net.py",
        "lineno": 12,
        "function": "forward",
        "line": "mask[...] = 1",
        "bytes_copied": 21504,
    }
    return Mutation(**fields | changes)


def log_of(*mutations):
    """Return a log with these records."""
    log = MutationLog()
    for mutation in mutations:
        log.add(mutation)
    return log


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "text"),
    [
        ((1024, 21), "bool", "cuda:0", "bool[1024, 21] cuda:0"),
        ((3,), "float32", "cpu", "float32[3] cpu"),
        ((), "int64", "cpu", "int64[] cpu"),
        ((0, 2), "complex64", "meta", "complex64[0, 2] meta"),
        ((), "", "", ""),
    ],
)
def test_describe(shape, dtype, device, text):
    """A tensor in words; nothing for what is no tensor."""
    assert describe(shape, dtype, device) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (21504, "21.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (2 << 40, "2.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_format_bytes(n, text):
    """Binary units, one digit."""
    assert format_bytes(n) == text


def test_mutation_in_one_line():
    """What wrote which argument of which module where."""
    assert str(write()) == (
        "add_ wrote argument batch['mask'] (bool[1024, 21] cuda:0) of pkg.Decoder"
        " at /src/net.py:12 in forward: mask[...] = 1"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"count": 138}, "forward: mask[...] = 1 (138 times)"),
        ({"line": ""}, "(bool[1024, 21] cuda:0) of pkg.Decoder at /src/net.py:12 in forward"),
        ({"module": ""}, "(bool[1024, 21] cuda:0) at /src/net.py:12"),
        ({"kind": "export", "op": "numpy"}, "numpy handed out the memory of argument batch['mask']"),
        ({"kind": "container", "op": "pop", "shape": (), "dtype": "", "device": ""},
         "pop changed argument batch['mask'] of pkg.Decoder at"),
    ],
)  # fmt: skip
def test_mutation_in_one_line_leaves_out_what_is_not_there(changes, text):
    """No empty brackets, no dangling words."""
    assert text in str(write(**changes))
    assert "\n" not in str(write(**changes))
    assert "  " not in str(write(**changes))


def test_mutation_is_frozen_hashable_and_without_a_dict():
    """A record is a value."""
    mutation = write()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mutation.count = 2
    assert not hasattr(mutation, "__dict__")
    assert {mutation, write()} == {mutation}


def test_mutation_holds_strings_and_numbers_only():
    """A record keeps no tensor alive, and its type hints can be resolved."""
    hints = typing.get_type_hints(Mutation)
    assert set(hints) == {field.name for field in dataclasses.fields(Mutation)}
    assert set(hints.values()) == {str, int, tuple[int, ...]}


def test_mutation_to_dict_goes_through_json():
    """Tools get plain values, and can rebuild the record."""
    data = json.loads(json.dumps(write().to_dict()))
    assert data == write().to_dict()
    assert Mutation(**data | {"shape": tuple(data["shape"])}) == write()


def test_mutation_pickles():
    """A worker process can send its records."""
    assert pickle.loads(pickle.dumps(write())) == write()


def test_log_is_a_sequence():
    """It can be indexed, sliced, iterated, reversed and searched."""
    first, second = write(), write(lineno=13)
    log = log_of(first, second)
    assert isinstance(log, Sequence)
    assert (len(log), log[0], log[-1]) == (2, first, second)
    assert log[1:] == (second,)
    assert list(log) == [first, second]
    assert list(reversed(log)) == [second, first]
    assert second in log
    assert log.index(second) == 1
    with pytest.raises(IndexError):
        log[2]
    assert not MutationLog()


def test_same_site_adds_up():
    """Bytes and counts add up; shape and line are those of the first write."""
    log = log_of(write(), write(shape=(7, 21), bytes_copied=147), write(bytes_copied=0, count=3))
    assert list(log) == [write(count=5, bytes_copied=21504 + 147)]


@pytest.mark.parametrize("field", ["filename", "lineno", "op", "argument", "module"])
def test_another_site_is_another_row(field):
    """Each part of a site counts, and the order is that of first sight."""
    other = write(**{field: 99 if field == "lineno" else "other"})
    assert list(log_of(other, write(), other)) == [
        dataclasses.replace(other, count=2, bytes_copied=43008),
        write(),
    ]


def test_records_read_earlier_do_not_change():
    """The log is live; what was read from it is a value."""
    log = log_of(write())
    before = log[0]
    log.add(write())
    assert (before.count, log[0].count) == (1, 2)


def test_bump_counts_a_known_site_and_refuses_a_new_one():
    """The cheap way for a site that is here already."""
    log = log_of(write())
    assert log.bump(write().site, 100)
    assert not log.bump(write(lineno=13).site, 100)
    assert not log.bump(write().site, 100, "export")
    assert list(log) == [write(count=2, bytes_copied=21604)]


def test_exports_are_no_mutations():
    """Copies for raw memory stand apart."""
    export = write(op="numpy", kind="export")
    log = log_of(export, export)
    assert len(log) == 0
    assert log.copies == (dataclasses.replace(export, count=2, bytes_copied=43008),)
    assert log.bump(export.site, 1, "export")
    assert log.copies[0].count == 3


def test_clear_forgets_everything():
    """The log starts again, and stays live."""
    log = log_of(write(), write(kind="export"))
    log.clear()
    assert (len(log), log.copies) == (0, ())
    log.add(write())
    assert list(log) == [write()]


def test_to_dicts():
    """One dict for each row."""
    assert log_of(write()).to_dicts() == [write().to_dict()]


def test_table():
    """Columns stand in line, counts to the right, and the totals below."""
    log = log_of(
        write(),
        write(count=137, bytes_copied=137 * 21504),
        write(op="__setitem__", argument="x", shape=(3,), dtype="float32", device="cpu",
              bytes_copied=12, lineno=5),
    )  # fmt: skip
    assert str(log) == (
        "count  op           argument       tensor                 copied   module       where"
        "                      line\n"
        "  138  add_         batch['mask']  bool[1024, 21] cuda:0  2.8 MiB  pkg.Decoder"
        "  /src/net.py:12 in forward  mask[...] = 1\n"
        "    1  __setitem__  x              float32[3] cpu         12 B     pkg.Decoder"
        "  /src/net.py:5 in forward   mask[...] = 1\n"
        "2 sites, 139 writes, 2.8 MiB copied."
    )
    assert repr(log) == "<MutationLog: 2 sites, 139 writes, 2.8 MiB copied>"


def test_table_of_an_empty_log():
    """It says so."""
    assert str(MutationLog()) == "No argument was written."
    assert repr(MutationLog()) == "<MutationLog: 0 sites, 0 writes, 0 B copied>"


def test_table_shows_exports_below():
    """Raw memory handed out is worth a look, and is not among the writes."""
    log = log_of(write(op="numpy", kind="export"))
    lines = str(log).splitlines()
    assert lines[0] == "No argument was written."
    assert lines[1] == "Copied because raw memory was handed out:"
    assert lines[3].split()[:2] == ["1", "numpy"]
    log.add(write())
    assert "1 site, 1 write, 1 export of raw memory, 42.0 KiB copied." in str(log).splitlines()


def test_table_shortens_long_lines_and_paths(monkeypatch, tmp_path):
    """A path below the working folder is relative; a long source line is cut."""
    monkeypatch.chdir(tmp_path)
    log = log_of(write(filename=str(tmp_path / "pkg" / "net.py"), line="x" * 61), write())
    row, other = str(log).splitlines()[1:3]
    assert f"  {(tmp_path / 'pkg' / 'net.py').relative_to(tmp_path)}:12 in forward  " in row
    assert row.endswith("  " + "x" * 57 + "...")
    assert "  /src/net.py:12 in forward" in other


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the working folder")
def test_table_in_a_folder_that_is_gone(monkeypatch, tmp_path):
    """Printing a log never fails for want of a working folder."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "/src/net.py:12 in forward" in str(log_of(write()))


def test_html_is_escaped():
    """Source lines may hold anything."""
    page = log_of(write(line="x[x < 1] = '<b>&'"), write(kind="export", op="numpy"))._repr_html_()
    assert "<td>x[x &lt; 1] = &#x27;&lt;b&gt;&amp;&#x27;</td>" in page
    assert page.count("<tr>") == 3
    assert page.count("<th>") == page.count("<td>") / 2 == 8
    assert "1 site, 1 write, 1 export of raw memory" in page


def test_html_of_an_empty_log():
    """It says so."""
    assert MutationLog()._repr_html_() == "<p>No argument was written.</p>"


def test_record_is_active_inside_only():
    """The block brings the log in and takes it out; the log stays readable."""
    assert active_logs() == ()
    with record() as log:
        assert active_logs() == (log,)
        log.add(write())
    assert active_logs() == ()
    assert list(log) == [write()]


def test_record_ends_when_it_raises():
    """An exception ends the block as its end does."""
    with pytest.raises(KeyError), record():
        raise KeyError
    assert active_logs() == ()


def test_nested_records_are_all_active():
    """Each block sees what happens inside it."""
    with record() as outer:
        with record() as inner:
            assert active_logs() == (outer, inner)
        assert active_logs() == (outer,)


def test_records_that_end_out_of_order():
    """Each takes out its own log."""
    first, second = record(), record()
    first.__enter__()
    inner = second.__enter__()
    first.__exit__(None, None, None)
    assert active_logs() == (inner,)
    second.__exit__(None, None, None)
    assert active_logs() == ()


def test_threads_do_not_see_each_other():
    """A new thread starts without logs."""
    seen = []
    with record():
        thread = threading.Thread(target=lambda: seen.append(active_logs()))
        thread.start()
        thread.join()
    assert seen == [()]


def test_tasks_inherit_and_do_not_leak():
    """A task sees the block it was started in; its own block stays its own."""

    async def child():
        with record():
            await asyncio.sleep(0)
            return len(active_logs())

    async def parent():
        with record():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)  # the child is inside its block now
            return len(active_logs()), await task

    assert asyncio.run(parent()) == (1, 2)


def test_log_is_safe_to_share():
    """Threads that add to one log lose no write."""
    log = log_of(write(bytes_copied=0, count=1))
    start = threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(2000):
            log.add(write(bytes_copied=1))
            log.bump(write().site, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(log) == [write(count=16001, bytes_copied=16000)]


def test_a_log_of_every_thread():
    """It sees writes that no block of their own thread would show it, until its end."""
    with record_everywhere() as log, record() as own:
        thread = threading.Thread(target=lambda: [each.add(write()) for each in active_logs()])
        thread.start()
        thread.join()
        assert len(log) == 1
        assert len(own) == 0
        assert set(map(id, active_logs())) == {id(log), id(own)}
    assert active_logs() == ()

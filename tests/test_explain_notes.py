"""The notes of `explain()`: bounded, in order, and gone with what they are about."""

from __future__ import annotations

import gc
import weakref

import pytest

from safemodule import _explain_notes
from safemodule._explain_notes import Log, Notes, tick

HERE = test_code = (lambda: None).__code__


def write(notes, storage, op="add_", offset=0, version=1, code=HERE, step=""):
    """Note a write."""
    notes.write(storage, op, code, offset, step, version, lambda: f"pin of {storage}")


def test_writes_since():
    """Only what comes after a moment counts."""
    notes = Notes()
    log = notes.log_of_saved(1)
    write(notes, 1, version=1)
    between = tick()
    assert [w.last for w in log.since(0)] == [1]
    assert log.since(between) == []
    write(notes, 1, version=2)
    (found,) = log.since(between)
    assert (found.first, found.last, found.count) == (1, 2, 2)
    assert found.first_tick < between < found.last_tick


def test_a_loop_is_one_record():
    """139 writes of one line are its first, its last and their number."""
    notes = Notes()
    log = notes.log_of_saved(1)
    for version in range(1, 140):
        write(notes, 1, version=version)
    (found,) = log.since(0)
    assert (found.first, found.last, found.count) == (1, 139, 139)


@pytest.mark.parametrize("other", [{"op": "mul_"}, {"offset": 2}, {"code": (lambda: 1).__code__}])
def test_places_are_apart(other):
    """Another op, line or function is another record; the last to write comes last."""
    notes = Notes()
    log = notes.log_of_saved(1)
    write(notes, 1, version=1)
    write(notes, 1, version=2, **other)
    assert [w.last for w in log.since(0)] == [1, 2]
    write(notes, 1, version=3)
    assert [w.last for w in log.since(0)] == [2, 3]


def test_storages_are_apart():
    """A write to one storage is none to another."""
    notes = Notes()
    one, two = notes.log_of_saved(1), notes.log_of_saved(2)
    write(notes, 1)
    assert len(one.since(0)) == 1
    assert two.since(0) == []


def test_saves_of_one_storage_share_a_log():
    """While one of its saved values lives, a storage has one log."""
    notes = Notes()
    log = notes.log_of_saved(1)
    assert notes.log_of_saved(1) is log


def test_log_dies_with_the_last_save():
    """A storage at the same address later starts anew."""
    notes = Notes()
    log = notes.log_of_saved(1)
    write(notes, 1)
    gone = weakref.ref(log)
    gc.disable()
    try:
        del log
        assert gone() is None
    finally:
        gc.enable()
    assert notes.log_of_saved(1).since(0) == []


def test_sites_are_bounded(monkeypatch):
    """A thousand lines that write are counted, not kept."""
    monkeypatch.setattr(_explain_notes, "_SITES_MAX", 3)
    log = Log()
    for offset in range(10):
        log.add("add_", HERE, offset, "", 1)
    assert [w.offset for w in log.since(0)] == [0, 1, 2]
    assert log.dropped == 7


def test_recent_writes_are_bounded(monkeypatch):
    """Of storages that nobody saved, the most recently written are known."""
    monkeypatch.setattr(_explain_notes, "_RECENT_MAX", 3)
    notes = Notes()
    for version, storage in enumerate((1, 2, 3, 1, 4), 1):
        write(notes, storage, version=version)
    assert [bool(notes.recent(n)) for n in (1, 2, 3, 4)] == [True, False, True, True]
    assert notes.recent(1)[0].since(0)[0].count == 2


def test_pins_are_held_as_long_as_the_note(monkeypatch):
    """A pin keeps the address of what is noted, and goes with the note."""

    class Pin:
        pass

    monkeypatch.setattr(_explain_notes, "_RECENT_MAX", 2)
    notes = Notes()
    pins = []

    def pin():
        made = Pin()
        pins.append(weakref.ref(made))
        return made

    for storage in (1, 1, 2, 3):
        notes.write(storage, "add_", HERE, 0, "", 1, pin)
    assert [p() is not None for p in pins] == [False, True, True]
    saved = notes.log_of_saved(4)
    notes.write(4, "add_", HERE, 0, "", 1, pin)
    assert len(pins) == 3
    assert len(saved.since(0)) == 1


def test_recent_writes_of_a_saved_storage():
    """What was saved later is known as well."""
    notes = Notes()
    write(notes, 1, version=1)
    log = notes.log_of_saved(1)
    write(notes, 1, version=2)
    assert [w.last for found in notes.recent(1) for w in found.since(0)] == [2, 1]
    assert [w.last for w in log.since(0)] == [2]


def test_table_is_swept(monkeypatch):
    """Dead storages leave the table now and then, live ones never."""
    monkeypatch.setattr(_explain_notes, "_SWEEP_MIN", 4)
    notes = Notes()
    kept = notes.log_of_saved(0)
    for storage in range(1, 100):
        notes.log_of_saved(storage)
    assert len(notes._saved) <= 8
    assert notes.log_of_saved(0) is kept


def test_views(monkeypatch):
    """Places of views are bounded too."""
    monkeypatch.setattr(_explain_notes, "_RECENT_MAX", 2)
    notes = Notes()
    for key in "abac":
        notes.view(key, f"op {key}", HERE, 1, None)
    assert notes.view_site("a") == ("op a", HERE, 1)
    assert notes.view_site("b") is None
    assert notes.view_site("c") == ("op c", HERE, 1)

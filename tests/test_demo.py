"""The demo: its claims hold, on a small instance."""

from __future__ import annotations

import logging
import re

import pytest

from safemodule import _demo


@pytest.fixture
def small(monkeypatch):
    """Make it a matter of a second."""
    monkeypatch.setattr(_demo, "BATCH", 64)
    monkeypatch.setattr(_demo, "CUSTOMERS", 6)


def test_all_acts(small, capsys):
    """Plain modules fail, safe ones train, the log has the guilty line, cloning costs more."""
    assert _demo.main(["--steps", "12"]) == 0
    out = capsys.readouterr().out
    assert "is at version 6; expected version 5 instead" in out or "modified by an inplace" in out
    before, after = map(float, re.search(r"tour length: (\S+) -> (\S+)", out).groups())
    assert after < before
    assert re.search(r"_demo\.py:\d+ .*scatter_", out.replace("\n", " "))
    plain, safe, by_hand = (float(m) for m in re.findall(r"(-?[\d.]+) MiB", out))
    assert plain == 0
    assert safe <= by_hand
    assert logging.getLogger("safemodule").handlers == []
    assert logging.getLogger("safemodule").propagate


def test_without_the_error(small, monkeypatch):
    """Should PyTorch accept the program one day, the demo says that it is out of date."""
    plain = _demo.build
    monkeypatch.setattr(_demo, "build", lambda base: plain(base, by_hand=True))
    with pytest.raises(SystemExit, match="out of date"):
        _demo.act_one()


def test_training_that_does_not_train(small):
    """One step makes nothing shorter."""
    with pytest.raises(SystemExit, match="did not get shorter"):
        _demo.act_two(1)

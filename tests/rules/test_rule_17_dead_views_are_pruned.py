"""Rule 17: temporaries leave nothing behind, and many live views cost in proportion."""

from __future__ import annotations

import torch

from safemodule import freeze_inputs, record
from safemodule._state import View, handle_and_root


def family(x):
    """Return the family of a handle."""
    _, root = handle_and_root(x)
    return root.family and root.family()


def test_temporaries_leave_no_weak_references():
    """20,000 views that die at once."""
    held = []

    @freeze_inputs
    def forward(x):
        keep = x[0]
        total = 0.0
        for i in range(20_000):
            total += len(x[i % 4])
        held.append(len(family(x).views))
        x.add_(1)
        return keep * 1

    assert forward(torch.zeros(4, 2)).tolist() == [1, 1]
    assert held[0] <= 64


def test_a_family_dies_with_its_last_view():
    """Without a live view there is no family at all."""

    @freeze_inputs
    def forward(x):
        v = x[0]
        assert type(v._safemodule) is View
        assert family(x) is not None
        del v
        assert family(x) is None

    forward(torch.zeros(4, 2))


def test_replays_grow_linearly(monkeypatch):
    """N live views and n redirects: the views are replayed at each redirect, and no more."""
    from safemodule import _redirect

    calls = []
    replay = _redirect.replay
    monkeypatch.setattr(_redirect, "replay", lambda *args: (calls.append(1), replay(*args))[1])
    w = torch.ones(2, requires_grad=True)

    def run(views, writes):
        @freeze_inputs
        def forward(x):
            rows = [x[i] for i in range(views)]
            total = 0.0
            for _ in range(writes):
                total = total + (x * w).sum()
                x.add_(1)
            return total, rows[-1] * 1

        calls.clear()
        forward(torch.zeros(views, 2))
        return len(calls)

    assert run(10, 1) == 10
    assert run(40, 1) == 40
    assert run(10, 8) == 80


def test_a_chain_is_replayed_once_for_all_its_children(monkeypatch):
    """Children of one parent share its replay."""
    from safemodule import _redirect

    calls = []
    replay = _redirect.replay
    monkeypatch.setattr(_redirect, "replay", lambda *args: (calls.append(1), replay(*args))[1])

    @freeze_inputs
    def forward(x):
        parent = x.t()
        children = [parent[i] for i in range(20)]
        x.add_(1)
        return [child * 1 for child in children]

    forward(torch.zeros(3, 20))
    assert len(calls) == 21


def test_a_write_without_a_redirect_replays_nothing(monkeypatch):
    """Once private, and nothing saved: writes go straight to the memory."""
    from safemodule import _redirect

    calls = []
    replay = _redirect.replay
    monkeypatch.setattr(_redirect, "replay", lambda *args: (calls.append(1), replay(*args))[1])

    @freeze_inputs
    def forward(x):
        rows = list(x)
        for row in rows:
            row.add_(1)
        return x * 1

    with record() as log:
        out = forward(torch.zeros(30, 2))
    assert out.tolist() == [[1, 1]] * 30
    assert len(calls) == 30
    assert sum(m.bytes_copied for m in log) == 30 * 2 * 4

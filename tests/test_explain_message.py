"""The words: what a reader and a tool get."""

from __future__ import annotations

import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from safemodule._explain_backward import _type_text
from safemodule._explain_frames import Place
from safemodule._explain_message import Explanation, event
from safemodule._table import short_path

SEED = """\
import torch
torch.manual_seed(0)
emb = torch.randn(1024, 21, 4)
q = torch.nn.Linear(4, 4)
mask = torch.zeros(1024, 21, dtype=torch.bool)
loss = 0.
for _ in range(3):
    logp = q(emb).sum(-1).masked_fill(mask, -1e9).log_softmax(-1)
    v, a = logp.max(-1); mask.scatter_(1, a[:, None], True)
    loss = loss + v.sum()
loss.backward()
"""

SEED_MESSAGE = """\
one of the variables needed for gradient computation has been modified by an inplace operation: \
[CPUBoolType [1024, 21]] is at version 3; expected version 2 instead.

`mask` (bool[1024, 21] cpu):
  saved for backward at version 2 by masked_fill, as its argument mask
    seed.py:8 in <module>
      logp = q(emb).sum(-1).masked_fill(mask, -1e9).log_softmax(-1)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  written by scatter_, to version 3
    seed.py:9 in <module>
      v, a = logp.max(-1); mask.scatter_(1, a[:, None], True)
                           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

Possible fixes, best first:
  1. mask = mask.scatter(...)
  2. mask = mask.clone() before the write
  3. save a copy: mask.clone() in place of mask where it is saved
  4. mask = freeze(mask) before it is saved: the write goes to a copy
"""


def explained(run):
    """Return text and explanation of what a function raises in a block."""
    with pytest.raises(InplaceError) as info, explain():
        run()
    return str(info.value), explanation_of(info.value)


def test_script(tmp_path):
    """A whole script at top level, run in a block, ends with the explanation."""
    (tmp_path / "seed.py").write_text(SEED)
    code = "import runpy; from safemodule import explain\nwith explain(): runpy.run_path('seed.py')"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.partition("safemodule.InplaceError: ")[2] == SEED_MESSAGE


def test_loop_of_139_writes():
    """Many writes of one line are counted, with the first and the last version."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        y = x * w
        for _ in range(139):
            x.add_(1)
        y.sum().backward()

    text, _ = explained(run)
    assert "is at version 139; expected version 0" in text
    assert "written by add_, 139 times: versions 1 to 139" in text


def test_writes_before_the_save_are_not_counted():
    """Of a loop that also wrote before the save, those after it count."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        kept = x * 1
        for step in range(10):
            x.add_(1)
            if step == 6:
                y = x * w
        y.sum().backward()
        return kept

    text, _ = explained(run)
    assert "written by add_, 3 times: versions 8 to 10" in text


def test_two_lines_in_a_loop():
    """Each line that wrote is named, with its last version where its number is not known."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        for _ in range(4):
            y = x * w
            x.add_(1)
            x.mul_(2)
        y.sum().backward()

    text, found = explained(run)
    assert "is at version 8; expected version 6" in text
    assert [e.text for e in found.events[1:]] == [
        "written by add_, for the last time to version 7",
        "written by mul_, for the last time to version 8",
    ]


def test_many_lines():
    """Of very many lines the first and the last are shown."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        y = x * w
        x.add_(1); x.add_(2); x.add_(3); x.add_(4); x.add_(5)  # noqa: E702  # fmt: skip
        x.add_(6); x.add_(7); x.add_(8); x.add_(9); x.mul_(10)  # noqa: E702  # fmt: skip
        y.sum().backward()

    text, found = explained(run)
    assert len(found.events) == 1 + 7
    assert "and written at 4 more places" in text
    assert found.events[1].text == "written by add_, to version 1"
    assert found.events[-1].text == "written by mul_, to version 10"


def test_variable_that_still_holds_the_tensor():
    """A variable that holds the tensor is believed more than the source."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        kept = x
        y = x * w
        kept.add_(1)
        x = torch.ones(3)
        y.sum().backward()
        return x

    _, found = explained(run)
    assert found.name == "kept"


def test_variable_that_was_bound_again():
    """If no variable holds the tensor any more, the source says what it was called."""

    def run():
        w = torch.ones(3, requires_grad=True)
        x = torch.zeros(3)
        y = x * w
        x.add_(1)
        x = torch.ones(3)
        y.sum().backward()
        return x

    _, found = explained(run)
    assert found.name == "x"


def test_path_of_a_module():
    """The module is named by its path in the largest model that is known."""

    class Step(nn.Module):
        def forward(self, x):
            return x.exp()

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.ModuleList([Step(), Step()])

        def forward(self, x):
            y = self.step[1](x)
            y.add_(1)
            return y

    class Trainer:
        def __init__(self):
            self.model = nn.Sequential()
            self.model.add_module("decoder", Decoder())

        def run(self):
            self.model(torch.ones(3, requires_grad=True)).sum().backward()

    trainer = Trainer()
    text, _ = explained(trainer.run)
    assert "in module decoder.step.1 (Step)" in text


def test_path_of_a_module_that_nobody_holds_nearby():
    """A model that is no variable of any frame is found as well."""

    class Inner(nn.Module):
        def forward(self, x):
            return x.exp()

    hidden = [nn.Sequential(nn.Identity(), nn.Sequential(Inner()))]

    def forward():
        return hidden[0](torch.ones(3, requires_grad=True))

    def run():
        y = forward()
        y.add_(1)
        y.sum().backward()

    text, _ = explained(run)
    assert "in module 1.0 (Inner)" in text


def test_dict():
    """A tool gets the parts as JSON."""

    def run():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    _, found = explained(run)
    parts = json.loads(json.dumps(found.to_dict()))
    assert parts["name"] == "y"
    assert parts["tensor"] == "float32[3] cpu"
    assert [e["kind"] for e in parts["events"]] == ["saved", "written"]
    first = run.__code__.co_firstlineno
    assert [e["lineno"] - first for e in parts["events"]] == [2, 3]
    assert {e["filename"] for e in parts["events"]} == {__file__}
    assert parts["events"][1]["line"] == "y.add_(1)"
    assert parts["fixes"] == list(found.fixes)


DTYPES = [
    torch.bool,
    torch.int64,
    torch.uint8,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_type_as_pytorch_says_it(dtype):
    """The type in the message is PyTorch's own word, which is not always the same kind of word."""
    w = torch.ones(2, requires_grad=True)
    x = torch.zeros(2).to(dtype)
    if dtype is torch.bool:
        y = w.masked_fill(x, 0.0)
    elif dtype is torch.int64:
        y = w.index_select(0, x)
    else:
        y = w.to(dtype if dtype.is_floating_point or dtype.is_complex else None) * x
    x.zero_()
    with pytest.raises(RuntimeError) as info:
        y.sum().abs().backward()
    assert re.search(r"operation: \[(\S+) \[", str(info.value))[1] == _type_text(x)


def test_no_words_found(monkeypatch):
    """If an explanation fails, the error stays an error, and says that it could not say more."""
    from safemodule import _explain_backward

    def fails(*_):
        raise LookupError("deliberately")

    monkeypatch.setattr(_explain_backward, "Models", fails)

    def run():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    with (
        pytest.raises(InplaceError, match="is at version 1; expected version 0") as info,
        explain(),
    ):
        run()
    assert any("deliberately" in note for note in info.value.__notes__)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_cuda():
    """On CUDA the device is named, and nothing waits for it."""
    w = torch.ones(3, requires_grad=True, device="cuda")
    mask = torch.zeros(3, dtype=torch.bool, device="cuda")

    def run():
        y = (w * 2).masked_fill(mask, 0.0)
        mask.logical_not_()
        return y.sum()

    torch.cuda.set_sync_debug_mode("error")
    try:
        with explain():
            (w * w).sum().backward()
            loss = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(InplaceError, match="CUDABoolType") as info:
        loss.backward()
    found = explanation_of(info.value)
    assert found.tensor == "bool[3] cuda:0"
    assert [e.where.function for e in found.events] == [run.__qualname__] * 2


def test_parts_that_are_missing(tmp_path, monkeypatch):
    """No advice, a source that has changed since, a folder that is gone: the rest is said."""
    found = Explanation("sentence", "float32[3] cpu", "x", "", (), ())
    assert "Possible fixes" not in str(found)

    name = str(tmp_path / "changed.py")
    linecache.cache[name] = (1, None, ["def f(x):\n", "    return x.add_(1)\n"], name)
    space = {}
    exec(compile("def f(x):\n    return x.add_(1)\n", name, "exec"), space)
    code = space["f"].__code__
    places = [Place(code, 2 * n) for n, _ in enumerate(code.co_positions())]
    whole = {event("written", "", p).mark for p in places}
    linecache.cache[name] = (1, None, ["def f(x):\n", "    pass\n"], name)
    assert {m for m in whole if m} != set()
    assert event("written", "", places[-2]).mark is None

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert short_path(name) == name

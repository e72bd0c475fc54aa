"""The benchmark suite: what it computes, that its variants are what they say, that its page is right.

Nothing here is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import _measure as measure
from benchmarks import _peak, _report, _whole
from benchmarks._floors import bare, floor, floor_of, off
from benchmarks._goals import goals
from benchmarks._models import MODELS
from benchmarks._questions import QUESTIONS
from benchmarks._table import Table
from benchmarks._variants import COPIES, KEEPERS, classes
from torch import nn

from safemodule import InputMutationError, freeze, set_mode

CPU = torch.device("cpu")


# -- figures ---------------------------------------------------------------------------------------


def test_a_figure():
    """The median, its interval by ranks, the quartiles."""
    found = measure.figure([float(i) for i in range(1, 26)], scale=2.0)
    # 25 rounds: the 8th and the 18th value enclose the median in 95 % of cases.
    assert (found.value, found.low, found.high) == (26.0, 16.0, 36.0)
    assert (found.q1, found.q3, found.rounds) == (13.0, 39.0, 25)


def test_a_figure_of_one_round():
    """There is no spread to speak of."""
    assert measure.figure([3.0]).to_dict() == {
        "value": 3.0, "low": 3.0, "high": 3.0, "q1": 3.0, "q3": 3.0, "rounds": 1,
    }  # fmt: skip


def test_the_interval_holds_what_it_says():
    """Of 400 samples of 25 rounds, some 95 % have the true median in their interval."""
    inside = 0
    for _ in range(400):
        found = measure.figure(torch.randn(25).exp().tolist())
        inside += found.low <= 1.0 <= found.high
    assert 0.92 <= inside / 400 <= 0.99


def test_comparisons_are_made_within_rounds():
    """A slow round of all variants is no difference between them."""
    slow = [1.0, 3.0, 2.0, 10.0, 5.0]
    turns = measure.Turns(
        {"plain": slow, "a": [x * 1.5 for x in slow], "b": [x + 2.0 for x in slow]}
    )
    assert turns.ratio("a").value == 1.5
    assert (turns.ratio("a").low, turns.ratio("a").high) == (1.5, 1.5)
    assert turns.added("b", scale=1.0).value == 2.0
    assert turns.added_ratio("a", "b").value == 0.75
    assert turns.added_over("b", "plain").value == pytest.approx(2 / 3)
    assert turns.time("plain", 10.0).value == 30.0


def test_every_variant_gets_the_same_turns():
    """As often, in random order, and what they take is what is found."""
    now, ran = [0.0], []

    def takes(name, seconds):
        def run():
            now[0] += seconds
            ran.append(name)

        return run

    costs = {"plain": 2e-3, "a": 3e-3, "b": 4e-3}
    cases = {name: takes(name, seconds) for name, seconds in costs.items()}
    turns = measure.take_turns(cases, seconds=0.06, rounds=5, clock=lambda: now[0])
    assert {name: len(found) for name, found in turns.seconds.items()} == dict.fromkeys(costs, 5)
    assert {n: pytest.approx(turns.time(n).value) for n in costs} == costs
    counts = {name: ran.count(name) for name in costs}
    assert len(set(counts.values())) == 1
    assert counts["plain"] > 5
    blocks = {tuple(ran[i : i + 3]) for i in range(len(ran) - 30, len(ran), 3)}
    assert len(blocks) > 1
    assert {frozenset(block) for block in blocks} == {frozenset(costs)}


def test_a_round_is_its_fastest_block():
    """An interruption is not the cost of the code."""
    now, count = [0.0], [0]

    def run():
        count[0] += 1
        now[0] += 1.0 if count[0] % 7 == 0 else 2e-3

    turns = measure.take_turns({"plain": run}, seconds=1.0, rounds=5, clock=lambda: now[0])
    assert turns.time("plain").high == pytest.approx(2e-3)


# -- what is measured ------------------------------------------------------------------------------


def test_bytes():
    """What operators allocate in one run."""
    x = torch.ones(1000)
    assert measure.allocated(lambda: x.clone(), CPU) == 4000
    assert measure.allocated(lambda: x.view(10, 100), CPU) == 0


def test_launches():
    """Operators that compute or copy, views and empty tensors left out."""
    x = torch.ones(4, 4)
    assert measure.launches(lambda: x.t()[0].view(2, 2), CPU) == 0
    assert measure.launches(lambda: x.clone(), CPU) == 1
    assert measure.launches(lambda: (x + x).mul_(2).sum(), CPU) == 3


def writes(self, x, y):
    """Write the first input."""
    x.mul_(2)
    return x + y


@pytest.mark.parametrize("name", KEEPERS)
def test_keepers_keep_the_callers_tensor(name):
    """Each way to keep it does, and gives the same result."""
    x, y = torch.ones(3), torch.ones(3)
    assert classes(writes)[name](x, y).tolist() == [3, 3, 3]
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [1, 1, 1])


def test_other_variants():
    """Plain, off and the floors write the caller's; strict refuses; guard() keeps it."""
    made = classes(writes)
    for name in ("plain", "SafeModule off", "floor", "floor off"):
        x = torch.ones(3)
        assert made[name](x, torch.ones(3)).tolist() == [3, 3, 3]
        assert x.tolist() == [2, 2, 2]
    x = torch.ones(3)
    with pytest.raises(InputMutationError):
        made["SafeModule strict"](x, x)
    assert made["guard()"](x, torch.ones(3)).tolist() == [3, 3, 3]
    assert x.tolist() == [1, 1, 1]


def test_a_floor_does_its_part():
    """An alias of the input goes in, the input itself comes out, operations are intercepted."""
    seen = []

    def forward(self, x):
        seen.append((type(x), torch._C._is_alias_of(x, source), type(x + x)))
        return x

    module = type("Net", (nn.Module,), {"forward": floor(forward)})()
    for source in (torch.ones(3), torch.ones(3, requires_grad=True)):
        assert module(source) is source
    assert seen == [(type(bare(source)), True, torch.Tensor)] * 2
    assert off(lambda *args, **kwargs: (args, kwargs))(1, k=2) == ((1,), {"k": 2})


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_models_are_one_model(build):
    """Every variant shares parameters and buffers, and computes the same; classes are its own."""
    made, inputs = _whole._every(build, CPU)
    plain = dict(made["plain"].named_parameters())
    expected = made["plain"].eval()(*inputs)
    for module in made.values():
        assert all(p is plain[name] for name, p in module.named_parameters())
        torch.testing.assert_close(module.eval()(*inputs), expected)
    kinds = [{type(m) for m in module.modules()} for module in made.values()]
    stock = {nn.ModuleList}  # it has no forward to guard
    assert set.union(*(a & b for i, a in enumerate(kinds) for b in kinds[:i])) <= stock


def test_the_floor_of_a_model_is_about():
    """Around every forward of it, or the outermost alone."""
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert ["forward" in m.__dict__ for m in floor_of(module).modules()] == [True, False, False]
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert all("forward" in m.__dict__ for m in floor_of(module, submodules=True).modules())


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "mib"), [(COPIES[0], 128), ("SafeModule", 0)])
def test_a_fresh_process_tells_its_peak(variant, mib):
    """Its own alone, however much its parent held."""
    held = torch.ones(2**26)  # 256 MiB
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._peak", variant, "0"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(_peak.__file__).parent.parent,
    )
    assert held.numel() > 0
    assert int(done.stdout) / 2**20 == pytest.approx(mib, abs=4)


# -- what is promised ------------------------------------------------------------------------------


def cell(value):
    """Return a figure as it stands in a result file."""
    return {"value": value, "low": value, "high": value, "q1": value, "q3": value, "rounds": 9}


def test_goals_of_nothing():
    """What was not measured is neither reached nor missed."""
    assert [goal.reached for goal in goals({})] == [None] * 9


def test_goals_take_the_worst():
    """Of all models and passes, with the floor of the same row."""
    rows = [
        {"model": "transformer", "SafeModule": cell(1.0), "floor": cell(0.9),
         "guard()": cell(1.1), "floor, all": cell(1.05)},
        {"model": "MLP", "SafeModule": cell(1.03), "floor": cell(1.01),
         "guard()": cell(1.3), "floor, all": cell(1.2)},
    ]  # fmt: skip
    found = {goal.name: goal for goal in goals({"models": {"rows": rows}})}
    assert (found["P5"].value, found["P5"].floor, found["P5"].reached) == (1.03, 1.01, False)
    assert (found["P6"].value, found["P6"].floor, found["P6"].reached) == (1.1, 1.05, True)


def test_memory_is_exact_or_not():
    """Too little is as wrong as too much; slices count too."""
    written = [{"SafeModule": 4.0, "of the k inputs": 4.0}]
    for kib, off_by in ((16.0, 0.0), (17.0, 1 / 1024), (15.0, 1 / 1024)):
        tables = {
            "written": {"rows": written},
            "slice": {"rows": [{"SafeModule": kib, "of the slice": 16.0}]},
        }
        goal = next(goal for goal in goals(tables) if goal.name == "P4")
        assert (goal.value, goal.reached) == (off_by, off_by == 0)


# -- the page --------------------------------------------------------------------------------------


def test_the_page_says_what_the_results_say(capsys):
    """`python -m benchmarks check`."""
    assert command.main(["check"]) == 0, capsys.readouterr().out


def test_a_page_that_differs_is_found(tmp_path, monkeypatch, capsys):
    """By the check."""
    page = tmp_path / "benchmarks.md"
    page.write_text(_report.PAGE.read_text() + "\nfaster than light\n")
    monkeypatch.setattr(_report, "PAGE", page)
    assert command.main(["check"]) == 1
    assert "differs" in capsys.readouterr().out


def test_every_question_has_a_picture():
    """Of every published result."""
    for device, result in _report.load().items():
        for name in result["tables"]:
            assert (_report.PICTURES / _report.picture(device, name)).exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00001, "0"), (2.0, "2"), (1.0234, "1.023"), (0.91234, "0.912"), (12.345, "12.3"),
        (0.01234, "0.0123"), (123456.7, "123,457"), (4096, "4,096"), (True, "yes"), (None, ""),
        (cell(1.5), "1.500"), ("MLP", "MLP"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    """Three digits, four near 1."""
    assert _report.number(value) == text


def test_where_cloning_is_cheaper_is_said():
    """Plainly, for each question."""
    hand = "x = x.clone() by hand"
    calls = [
        {"elements": 8, "gradient": True, "SafeModule": cell(3.0), hand: cell(2.0)},
        {"elements": 8, "gradient": False, "SafeModule": cell(1.0), hand: cell(2.0)},
    ]
    tables = {"call": {"rows": calls}}
    (text, _) = _report.comments({"tables": tables})
    assert text == "Cloning by hand was cheaper for: 8 elements with a gradient."
    calls[0]["SafeModule"] = cell(1.0)
    assert "nowhere" in _report.comments({"tables": tables})[0]


# -- the command -----------------------------------------------------------------------------------


def test_a_run(tmp_path, capsys):
    """Answers the questions asked, prints the ladder, and leaves a result file."""
    asked = ["slice", "launches"]
    code = command.main(["--quick", "--only", *asked, "--out", str(tmp_path), "--no-pictures"])
    assert code == 0
    out = capsys.readouterr().out
    assert "| P4 | " in out
    result = json.loads((tmp_path / "cpu.json").read_text())
    assert list(result["tables"]) == asked
    assert {g["name"]: g["reached"] for g in result["goals"]}["P4"] is True
    launches = {row["forward"]: row["SafeModule"] for row in result["tables"]["launches"]["rows"]}
    assert launches == {
        "reads, and makes views": 0, "returns an input": 0,
        "writes one of two, twice": 1, "writes both": 2,
    }  # fmt: skip
    assert _report.page({"cpu": result}).count("\n### ") == 2


def test_pictures(tmp_path):
    """Lines where there is an axis, bars with intervals elsewhere; the same twice."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    lines = Table("lines", "Lines", "us", ["n", "a"], x="n", drawn=["a"])
    lines.rows = [{"n": n, "a": cell(float(n))} for n in (1, 4000)]
    bars = Table("bars", "Bars", "ratio", ["model", "a"], drawn=["a", "b"], intervals=True)
    bars.rows = [{"model": "MLP", "a": cell(1.0), "b": 2.0}]
    tables = {table.name: table.to_dict() for table in (lines, bars)}
    result = {"meta": {"device": "cuda"}, "tables": tables}
    texts = []
    for folder in ("one", "two"):
        _report.pictures(result, tmp_path / folder)
        texts.append([path.read_text() for path in sorted((tmp_path / folder).iterdir())])
    assert texts[0] == texts[1]
    assert [path.name for path in sorted((tmp_path / "one").iterdir())] == [
        "cuda-bars.svg",
        "cuda-lines.svg",
    ]


def test_a_question_that_fails_leaves_the_others(monkeypatch, capsys):
    """The run goes on, and says so in its status."""

    def fails(setting):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(QUESTIONS, "call", fails)
    assert command.main(["--quick", "--only", "call", "launches"]) == 1
    out = capsys.readouterr().out
    assert "call failed" in out
    assert "no such luck" in out
    assert "launches:" in out


def test_no_cuda_device(capsys):
    """Is said, and is status 2."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert command.main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_handles_are_no_part_of_the_floors():
    """The floor of an operation is torch's own alone, whatever the mode."""
    set_mode("strict")
    x = bare(torch.ones(3))
    x.add_(1)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(InputMutationError):
        freeze(torch.ones(3)).add_(1)

"""A seeded sample of the sweeps over PyTorch's operators, their gradients, and its modules.

The rest of them runs in `make sweep`; see `tests/sweep`.
"""

from __future__ import annotations

import logging

import pytest
import torch

from tests.sweep import __main__, common, grads, modules, ops


@pytest.fixture(autouse=True)
def _prepared():
    """Put back what a sweep sets for its process."""
    logger = logging.getLogger("safemodule")
    level = logger.level
    common.prepare()
    yield
    logger.setLevel(level)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("suite", "sample"),
    [(ops, "30"), (grads, "8"), (modules, "15")],
    ids=["ops", "grads", "modules"],
)
def test_a_sample_is_equal(suite, sample, capsys):
    """A guarded call gives what a call on clones gives, over a sample of the database."""
    code = suite.main(["--sample", sample, "--seed", "0", "--processes", "1"])
    *failures, line = capsys.readouterr().out.splitlines()
    assert (code, failures) == (0, [])
    assert "equal" in line
    assert "failures" not in line


def _index(name, dtype, entries):
    return next(i for i, e in enumerate(entries) if e.name == name), dtype


def test_the_operator_sweep_sees_a_missing_guard(monkeypatch):
    """Without a guard the caller's tensor is written, and nothing is on record."""
    monkeypatch.setattr(ops, "guarded", ops.body)
    tally = ops.sweep(_index("add", torch.float32, ops.op_db))
    found = "\n".join(tally.failures)
    assert "add method_ torch.float32 #0: the caller's input: " in found
    assert "add method_ torch.float32 #0: not on record: ['input']" in found
    assert "add out= torch.float32 #0: the caller's kwargs['out']: " in found
    assert "add function" not in found


def test_the_operator_sweep_sees_a_needless_copy(monkeypatch):
    """Copying every input on entry gives the right results, and is no copy-on-write."""

    def cloning(call, then, input, args, kwargs):  # noqa: A002
        values = common.rebuilt((input, args, kwargs), torch.clone)
        return ops.body(call, then, *values)

    monkeypatch.setattr(ops, "guarded", cloning)
    tally = ops.sweep(_index("sin", torch.float32, ops.op_db))
    assert "sin function torch.float32 #0: copied and not written: ['input']" in tally.failures


def test_the_gradient_sweep_sees_a_missing_guard(monkeypatch):
    """Without a guard a leaf cannot be written, nor what autograd has saved."""
    monkeypatch.setattr(grads, "guarded", grads.read_write_read)
    tally = grads.sweep(_index("sin", torch.float64, ops.op_db))
    assert "a leaf Variable that requires grad" in tally.failures[0]


def test_the_gradient_sweep_sees_a_stale_value(monkeypatch):
    """A write that reaches what autograd has saved changes the gradient."""

    def unseen(op, targets, values):
        def write(x):
            return x.clone()

        cloned = common.rebuilt(values, write)
        y = grads.call(op, cloned)
        for path in targets:
            common.inputs_of(cloned)[path].data.add_(grads.STEP)
        return y, grads.call(op, cloned)

    monkeypatch.setattr(grads, "guarded", unseen)
    tally = grads.sweep(_index("sin", torch.float64, ops.op_db))
    assert any("samples: gradients: [0]: values" in failure for failure in tally.failures)


def test_the_module_sweep_sees_a_missing_guard(monkeypatch):
    """Without a guard an in-place activation writes its input."""
    monkeypatch.setattr(modules, "guarded_kinds", lambda kind: {"plain": kind})
    tally = modules.sweep(_index("nn.ReLU", torch.float32, modules.module_db))
    found = "\n".join(tally.failures)
    assert "inplace plain no_grad: the caller's input: " in found
    assert "inplace plain no_grad: recorded [], written ['input']" in found


def test_the_suites_are_run_by_name(monkeypatch, capsys):
    """`python -m tests.sweep NAME` runs that suite alone, and passes on how much to draw."""
    given = []
    monkeypatch.setattr(ops, "main", lambda argv: given.append(argv) or 0)
    assert __main__.main(["ops", "--sample", "3", "--seed", "7"]) == 0
    assert given == [["--seed", "7", "--sample", "3"]]
    with pytest.raises(SystemExit):
        __main__.main(["operators"])
    assert "no suite operators: there are ops, grads" in capsys.readouterr().err


def test_a_suite_that_fails_fails_the_run(monkeypatch):
    """The exit code is 1 if any suite failed, and the others are run all the same."""
    ran = []
    monkeypatch.setattr(ops, "main", lambda argv: ran.append("ops") or 1)
    monkeypatch.setattr(grads, "main", lambda argv: ran.append("grads") or 0)
    assert __main__.main(["ops", "grads"]) == 1
    assert ran == ["ops", "grads"]

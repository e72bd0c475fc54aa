"""Random programs: a guarded call is as if its inputs had been cloned, and the reference is right.

`tests/programs` writes forwards made of views, writes and reads and runs them in a reference that
knows nothing of the library. `python -m tests.sweep.programs` runs many thousands.
"""

from __future__ import annotations

import hypothesis
import pytest
import torch

import safemodule
from tests.programs.check import Mismatch, Program, check, check_reference, data
from tests.programs.memory import Undefined
from tests.programs.numeric import check_derivative
from tests.programs.runs import run_guarded
from tests.programs.shrink import shrink
from tests.programs.strategies import programs
from tests.sweep.programs import fails

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of PyTorch, about odd programs
    pytest.mark.usefixtures("_silent"),
]
PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
"""Hypothesis makes them; `shrink` makes small those that fail: it knows Python."""


@pytest.fixture(scope="module")
def _silent():
    """Write no log: programs write hundreds of inputs."""
    import logging

    logger = logging.getLogger("safemodule")
    logger.disabled = True
    yield
    logger.disabled = False


@hypothesis.settings(max_examples=300, phases=PHASES, suppress_health_check=hypothesis.HealthCheck)
@hypothesis.given(programs())
def test_a_guarded_program_is_as_if_its_inputs_had_been_cloned(program):
    """Values, gradients, records and the caller's side are those of the reference."""
    try:
        check(program)
    except Undefined:
        hypothesis.reject()
    except Exception as error:
        small = shrink(program, fails, most=500)
        raise AssertionError(f"{error}\n\n{small.source()}") from error


@hypothesis.settings(max_examples=150, phases=PHASES, suppress_health_check=hypothesis.HealthCheck)
@hypothesis.given(programs())
def test_the_reference_is_what_pytorch_does_on_clones(program):
    """Where PyTorch does not refuse a program the reference has its values and gradients."""
    try:
        check_reference(program)
    except Undefined:
        hypothesis.reject()


INPUTS = """\
a = data(2, 3).requires_grad_()
p = data(seed=5).requires_grad_()
args = (a,)
leaves = [a, p]
"""
BODY = """\
@freeze_inputs
def forward(a):
    y = a * p
    a[0] = 1.0
    return y, a
"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda func: func, "the caller's tensor was"),
        (lambda func: lambda a: func(a.detach().clone()), "the gradient of leaf 0"),
        (lambda func: lambda a: func(a.clone() + 1), "result 0 is"),
        (lambda func: lambda a: func(a.clone()), "on record are"),
        (lambda func: lambda a: (*func(a.clone())[:1], a), "result 1 is"),
    ],
)
def test_a_library_with_a_fault_is_found_out(monkeypatch, fault, message):
    """Each part of the comparison fails for a library that is wrong in this part."""
    if message == "the caller's tensor was":
        inputs = INPUTS.replace("a = data(2, 3).requires_grad_()", "a = data(2, 3)")
        program = Program(inputs.replace("[a, p]", "[p]"), BODY.replace("a * p", "a + p"))
    else:
        program = Program(INPUTS, BODY.replace("a * p", "a.tanh()"))
    check(program)
    monkeypatch.setattr(safemodule, "freeze_inputs", fault)
    with pytest.raises(Mismatch, match=message):
        check(program)


def test_a_failing_program_is_made_small(monkeypatch):
    """What has nothing to do with a failure is taken out of it."""
    monkeypatch.setattr(safemodule, "freeze_inputs", lambda func: func)
    body = (
        "@freeze_inputs\ndef forward(a):\n    y = (a * 2).sum()\n    for i in range(2):\n"
        "        with torch.no_grad():\n            a.t()[i].add_(1)\n    return a, y\n"
    )
    inputs = INPUTS.replace(".requires_grad_()\np", "\np").replace("[a, p]", "[p]")
    small = shrink(Program(inputs, body), fails)
    assert len(small.body.splitlines()) == 3
    assert "add_" in small.body
    assert "import torch" in small.source()


def test_a_program_without_meaning_is_undefined():
    """The reference refuses what PyTorch gives no meaning, instead of guessing."""
    overlap = BODY.replace("a[0] = 1.0", "a[:, 1:].add_(a[:, :-1])")
    stale = BODY.replace("y = a * p", "with torch.no_grad():\n        y = a[1]")
    for body in (overlap, stale):
        with pytest.raises(Undefined):
            check(Program(INPUTS, body))
    assert torch.is_grad_enabled()


def test_finite_differences_find_a_wrong_gradient():
    """The gradients of a program are the derivative of what it computes, also after a write."""
    program = Program(INPUTS, BODY.replace("a * p", "a.tanh() * p"))
    _, caller, out = run_guarded(program)
    y, a = out
    total = sum((x * data(*x.shape, seed=i + 20)).sum() for i, x in enumerate((y, a)))
    gradients = torch.autograd.grad(total, caller.leaves)
    assert check_derivative(program, out, gradients)
    wrong = [gradients[0] * 1.01, gradients[1]]
    with pytest.raises(Mismatch, match="finite differences"):
        check_derivative(program, out, wrong)


def test_finite_differences_are_left_out_where_gradients_end():
    """They would differ by design."""
    program = Program(INPUTS, BODY.replace("a * p", "a.detach() * p"))
    _, caller, out = run_guarded(program)
    assert not check_derivative(program, out, [None] * len(caller.leaves))

"""Gradients by finite differences: of programs that autograd differentiates as they stand.

Along one direction, every leaf towards a multiple of itself: one derivative tells of all leaves.
"""

from __future__ import annotations

import torch

from tests.programs.memory import Undefined
from tests.programs.reference import value_of
from tests.programs.runs import Caller, Mismatch, Program, data, run_guarded, tensors_in

STEP = 1e-6
# Where gradients end, are turned, or are asked for; where memory is read as bits or by strides; where
# one element may be written twice at once, which PyTorch differentiates as if both had stayed.
NOT_THE_DERIVATIVE = (
    "detach", ".data", "_grad", "init.", "reverse", "slope", "view(torch.", "view(dtype", "as_strided",
    "[[", "[j", "j]", "j,", "j)",
)  # fmt: skip


def differentiable(program):
    """Tell whether the gradient of a program is the derivative of what it computes."""
    return not any(text in program.body for text in NOT_THE_DERIVATIVE)


def derivative(program, which):
    """Return the derivative of the weighted sum of some results, in units of the leaves."""
    high, low = (_total(program, step, which) for step in (STEP, -STEP))
    return (high - low) / (2 * STEP)


def _total(program, step, which):
    inputs = program.inputs.replace(".requires_grad_()", f".mul(1 + {step!r})")
    _, _, out = run_guarded(Program(inputs, program.body))
    results = [value_of(x) for x in tensors_in(out)]
    total = 0.0
    for i in which:
        x = results[i]
        real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        total += float((real.detach() * data(*real.shape, seed=i + 20)).sum())
    return total


def check_derivative(program, out, gradients):
    """Compare gradients with finite differences; raises Mismatch.

    Args:
        program: The program.
        out: What it returned.
        gradients: Of its leaves, of the weighted sum of the results.

    Returns:
        Whether there was anything to compare.
    """
    which = [i for i, x in enumerate(tensors_in(out)) if value_of(x).requires_grad]
    if not which or not differentiable(program):
        return False
    leaves = Caller(program).leaves  # the caller may have written his since
    if program.inputs.count("requires_grad_") != len(leaves):
        return False  # made small: some are not asked for
    if not all(x.is_contiguous() for x in leaves):
        return False  # moved, they would be of another layout, which a program can see
    pairs = zip(leaves, gradients[: len(leaves)], strict=True)
    expected = sum(float((g.conj() * x.detach()).real.sum()) for x, g in pairs if g is not None)
    found = derivative(program, which)
    if not abs(found) < 1e9:
        raise Undefined("out of range")
    if abs(found - expected) > 1e-4 * max(1.0, abs(found)):
        raise Mismatch(f"finite differences give {found}, the gradients {expected}")
    return True

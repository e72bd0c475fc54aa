"""Run a program guarded and in the reference, and compare."""

from __future__ import annotations

import dataclasses
import zlib

import torch
from torch import Tensor

import safemodule
from tests.programs.memory import Undefined
from tests.programs.numeric import check_derivative
from tests.programs.reference import value_of
from tests.programs.runs import (
    Mismatch,
    Program,
    code_of,
    data,
    run_guarded,
    run_plain,
    run_reference,
    tensors_in,
)

__all__ = ["Mismatch", "Program", "check", "check_reference", "check_strict", "data", "defined"]

RTOL = ATOL = 1e-9


@dataclasses.dataclass
class Outcome:
    """What one run gave."""

    values: list
    gradients: list


def outcome(out, leaves, *, twice=False, before_backward=lambda: None):
    """Return the values and, of a fixed weighted sum of them, the gradients.

    Args:
        out: What the program returned.
        leaves: The tensors whose gradients are wanted.
        twice: Return the gradients of these gradients too.
        before_backward: Called before the backward pass.
    """
    values = [value_of(x).detach().clone() for x in tensors_in(out)]
    loss = torch.zeros((), dtype=torch.float64)
    for i, value in enumerate(value_of(x) for x in tensors_in(out)):
        if value.requires_grad:
            real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            loss = loss + (real * data(*real.shape, seed=i + 20)).sum()
    before_backward()
    gradients = _gradients(loss, leaves, create_graph=twice)
    if twice:
        parts = [(g * data(*g.shape, seed=i)).sum() for i, g in _real(gradients)]
        gradients += _gradients(sum(parts, torch.zeros(())), leaves, create_graph=False)
    return Outcome(values, gradients)


def _gradients(loss, leaves, *, create_graph):
    if not loss.requires_grad:
        return [None] * len(leaves)
    found = torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=create_graph)
    return list(found)


def _real(tensors):
    return [
        (i, torch.view_as_real(x.resolve_conj()) if x.is_complex() else x)
        for i, x in enumerate(tensors)
        if x is not None and x.requires_grad
    ]


def _twice(program):
    """Tell whether the second derivatives of a program are compared: of one in four."""
    return zlib.crc32(program.body.encode()) % 4 == 0


def defined(program):
    """Return what the reference says of a program; raises Undefined where it has no meaning."""
    run, caller, out = run_reference(program)
    try:
        caller.untouched()
    except Mismatch as error:
        raise Undefined("it writes a tensor that it was not passed") from error
    try:
        expected = outcome(out, caller.leaves, twice=_twice(program))
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            raise Undefined("a tensor of the program's own is written") from error
        if not _twice(program):
            raise
        raise Undefined("no second derivative") from error
    for value in (*expected.values, *expected.gradients):
        if value is not None and value.dtype.is_floating_point and not (value.abs() < 1e12).all():
            raise Undefined("out of range")
    return run, caller, out, expected


def check(program):
    """Compare the guarded run of a program with the reference; raises Mismatch."""
    run, caller, out, expected = defined(program)
    log, guarded_caller, guarded_out = run_guarded(program)
    for x in tensors_in(guarded_out):
        if type(x) is not Tensor:
            raise Mismatch(f"a result is a {type(x).__name__}")
    _compare_identity(out, caller, guarded_out, guarded_caller)
    guarded_caller.untouched()
    snapshot = "snapshot=True" in program.body
    try:
        got = outcome(
            guarded_out,
            guarded_caller.leaves,
            twice=_twice(program),
            before_backward=guarded_caller.write_all if snapshot else lambda: None,
        )
    except RuntimeError as error:
        if "out of bounds for storage" in str(error):  # a fault of torch, on clones as well:
            # x[:, 2:].mH.mul_(p) of one column asks for the memory of three
            raise Undefined("PyTorch cannot differentiate it") from error
        raise
    compare(got, expected)
    if not snapshot:
        guarded_caller.untouched()
    body = code_of(program.body, "body").co_filename
    writes = {(m.lineno if m.filename == body else 0, m.argument) for m in log}
    if writes != run.writes:
        raise Mismatch(f"on record are {sorted(writes)}, written were {sorted(run.writes)}")
    if zlib.crc32(program.body.encode()) % 2:
        check_derivative(program, guarded_out, got.gradients)
    return run


def check_strict(program):
    """See that strict mode raises at the first write, before it; raises Mismatch."""
    run, _, _, expected = defined(program)
    caller, error = None, None
    try:
        with safemodule.mode("strict"):
            _, caller, out = run_guarded(program)
    except safemodule.InputMutationError as raised:
        error = raised
    if error is None:
        if run.order:
            raise Mismatch(f"strict let pass {run.order}")
        compare(outcome(out, caller.leaves, twice=_twice(program)), expected)
        return
    if error.mutation is None or not run.order:
        raise Mismatch(f"strict refused a program that writes nothing: {error}")
    line = run.order[0][0]
    at = {argument for where, argument in run.order if where == line}
    body = code_of(program.body, "body").co_filename
    found = error.mutation.lineno if error.mutation.filename == body else 0
    if found != line or error.mutation.argument not in at:
        raise Mismatch(f"strict refused {found, error.mutation.argument}, not {line, at}")


def _compare_identity(out, caller, guarded_out, guarded_caller):
    pairs = zip(tensors_in(out), tensors_in(guarded_out), strict=True)
    for i, (x, y) in enumerate(pairs):
        for mine, theirs in zip(caller.tensors, guarded_caller.tensors, strict=True):
            # The other way round a frozen handle may turn out to be the caller's tensor, unwritten.
            if x is mine and y is not theirs:
                raise Mismatch(f"result {i} is the caller's tensor: {y is theirs}, not {x is mine}")


def compare(got, expected):
    """Raise Mismatch unless two outcomes are the same."""
    for i, (a, b) in enumerate(zip(got.values, expected.values, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype or not _close(a, b):
            raise Mismatch(f"result {i} is\n{a}, not\n{b}")
    for i, (a, b) in enumerate(zip(got.gradients, expected.gradients, strict=True)):
        if a is None and b is None:
            continue
        if a is None or b is None:
            a, b = (torch.zeros_like(y) if x is None else x for x, y in ((a, b), (b, a)))
        if not _close(a, b):
            raise Mismatch(f"the gradient of leaf {i} is\n{a}, not\n{b}")


def _close(a, b):
    if a.dtype in (torch.bool, torch.int64):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True)


def check_reference(program):
    """Compare the reference with PyTorch on clones. Returns False where that refuses the program."""
    run, _, _, expected = defined(program)
    if run.by_geometry or run.passed_through:
        return False  # the two differ by design
    try:
        caller, out = run_plain(program)
        got = outcome(out, caller.leaves, twice=_twice(program))
    except RuntimeError:
        return False
    if ".data" in program.body:  # what was saved has changed, unseen by autograd
        got.gradients = expected.gradients
    compare(got, expected)
    return True

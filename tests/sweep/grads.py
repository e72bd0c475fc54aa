"""Every differentiable operator, called before and after a write of its inputs.

    y = op(x)
    x.add_(c)
    z = op(x)

inside a guarded function, against ``x2 = x + c; z = op(x2)`` without a guard: outputs, gradients of
all arguments, gradients of the gradients, and forward-mode tangents. PyTorch itself refuses many of
these, after a clone of the input made by hand too; the sweep counts how many. In-place operators
stand between two reads: ``y = x * x; op_(x); z = x * x; x.add_(c)``.

    python -m tests.sweep grads [--sample N] [--seed S]
"""

from __future__ import annotations

import functools
import sys
import time

import torch
from torch.autograd import forward_ad
from torch.testing._internal.common_methods_invocations import op_db

from safemodule import freeze_inputs
from tests.sweep import common

DTYPES = (torch.float64, torch.complex128)
STEP = 0.0625


# -- programs that write, and what they should give ------------------------------------------------


def call(op, values):
    """Call an operator with the random numbers of a fixed seed."""
    torch.manual_seed(0)
    return op(values["input"], *values["args"], **values["kwargs"])


def read_write_read(op, targets, values):
    """Call the operator, write the targets, call it again."""
    inputs = common.inputs_of(values)
    y = call(op, values)
    for path in targets:
        inputs[path].add_(STEP)
    return y, call(op, values)


def read_new_read(op, targets, values):
    """Do the same with new tensors in the place of written ones."""
    inputs = common.inputs_of(values)
    y = call(op, values)
    written = {id(inputs[path]) for path in targets}
    later = common.rebuilt(values, lambda x: placed(x, x + STEP) if id(x) in written else x)
    z = call(op, later)
    # A result that is a view of a written input sees the write.
    flat, now = [out for _, out in common.walk(y)], [out for _, out in common.walk(z)]
    views = [any(common.shared(out, inputs[path]) for path in targets) for out in flat]
    seen = {id(a): b if v else a for a, b, v in zip(flat, now, views, strict=True)}
    return common.rebuilt(y, lambda out: seen[id(out)]), z


def placed(x, new):
    """Return `new` in the places of memory that `x` has: `as_strided` may name them."""
    if common.settled(x) or torch._debug_has_internal_overlap(x) == 1:
        return new
    return common.twin(x).copy_(new)


def read_op_read(op_, values):
    """Read the first input, let an in-place operator write it, read it, and write it again."""
    x = values["input"]
    y = x * x
    call(op_, values)
    z = x * x
    if apart(x):
        x.add_(STEP)
    return y, z, x * x


def read_op_of_new_read(op_, values):
    """Do the same where the operator writes a fresh tensor that nobody has read."""
    x = values["input"]
    x1 = call(op_, {**values, "input": placed(x, x * 1)})
    x2 = x1 + STEP if apart(x1) else x1
    return x * x, x1 * x1, x2 * x2


def apart(x):
    """Tell whether every element has a place of its own: else `add_` is not `+`."""
    return torch._debug_has_internal_overlap(x) == 0


guarded = freeze_inputs(read_write_read)
guarded_op = freeze_inputs(read_op_read)


# -- derivatives -----------------------------------------------------------------------------------


def same(x):
    """Return the argument."""
    return x


def with_derivatives(program, process, leaves, *, twice):
    """Return [outputs, gradients, gradients of the gradients] of a program, up to an error."""
    found = [common.attempt(program)]
    if isinstance(found[0], common.Raised):
        return found
    outputs = [out for _, out in common.walk([process(part) for part in found[0]])]
    found.append(common.attempt(common.derivatives, outputs, leaves, 1, twice))
    if twice and not isinstance(found[1], common.Raised):
        found.append(common.attempt(common.derivatives, found[1], leaves, 2, False))
    return found


def with_tangents(program, values):
    """Return primals and tangents of a program whose differentiable inputs have tangents."""
    torch.manual_seed(3)
    with forward_ad.dual_level():
        duals = common.rebuilt(
            values,
            lambda x: (
                forward_ad.make_dual(x.detach(), torch.randn_like(x))
                if x.requires_grad
                else x.detach().clone()
            ),
        )
        outputs = [out for _, out in common.walk(program(duals))]
        return [tuple(forward_ad.unpack_dual(out)) for out in outputs]


# -- one operator ----------------------------------------------------------------------------------


class Checker:
    """Runs programs both ways and compares."""

    def __init__(self):
        self.tally = common.Tally()
        self.where = ""

    def compare(self, count, ours, theirs, values, pictures):
        """Count one comparison, and take down what differs."""
        names = ("outputs", "gradients", "gradients of gradients")
        faults = []
        for name, one, other in zip(names, ours, theirs, strict=False):
            found = common.gap(one, other)
            if found:
                faults.append(f"{name}: {found}")
        if not faults and len(ours) != len(theirs):
            faults.append(f"got as far as {len(ours)}, expected {len(theirs)}")
        for path, picture in pictures.items():
            changes = picture.changes()
            if changes:
                faults.append(f"the caller's {path}: {changes}")
        self.tally.counts[count] += 1
        self.tally.counts["equal"] += not faults
        self.tally.failures += [f"{self.where} {count}: {fault}" for fault in faults]

    def sample(self, op, sample):
        """Check one sample of one operator."""
        values = {"input": sample.input, "args": sample.args, "kwargs": sample.kwargs}
        inputs = common.inputs_of(values)
        leaves = [x for x in inputs.values() if x.requires_grad]
        if not leaves:
            return
        pictures = {path: common.Picture(x) for path, x in inputs.items()}
        function = functools.partial(op.gradcheck_wrapper, op.op)
        able = [p for p, x in inputs.items() if x.requires_grad and common.ordinary(x)]
        process = sample.output_process_fn_grad
        for targets in {tuple(able[:1]), tuple(able)}:
            ours = with_derivatives(
                lambda: guarded(function, targets, values),
                process,
                leaves,
                twice=op.supports_gradgrad,
            )
            theirs = with_derivatives(
                lambda: read_new_read(function, targets, self.own(values)),
                process,
                leaves,
                twice=op.supports_gradgrad,
            )
            self.compare("samples", ours, theirs, values, pictures)
            self.refusals(function, targets, values, process, leaves)
            if op.supports_forward_ad:
                self.compare(
                    "forward-mode",
                    [
                        common.attempt(
                            with_tangents, lambda v: guarded(function, targets, v), values
                        )
                    ],
                    [
                        common.attempt(
                            with_tangents, lambda v: read_new_read(function, targets, v), values
                        )
                    ],
                    values,
                    pictures,
                )
        op_ = op.get_inplace()
        if op_ is not None and op.supports_inplace_autograd and sample.input is leaves[0]:
            ours = with_derivatives(
                lambda: guarded_op(op_, values), same, leaves, twice=op.supports_gradgrad
            )
            theirs = with_derivatives(
                lambda: read_op_of_new_read(op_, self.own(values)),
                same,
                leaves,
                twice=op.supports_gradgrad,
            )
            self.compare("in-place", ours, theirs, values, pictures)

    @staticmethod
    def own(values):
        """Return the arguments with copies of what may be written, running statistics for one."""
        return common.rebuilt(values, lambda x: x if x.requires_grad else x.detach().clone())

    def refusals(self, function, targets, values, process, leaves):
        """Count what PyTorch refuses though every input was cloned by hand."""
        cloned = common.rebuilt(values, torch.Tensor.clone)
        plain = with_derivatives(
            lambda: read_write_read(function, targets, cloned), process, leaves, twice=False
        )
        last = plain[-1]
        self.tally.counts["refused by plain PyTorch"] += isinstance(last, common.Raised)


def sweep(job):
    """Check one operator in one dtype; returns a tally."""
    index, dtype = job
    op = op_db[index]
    checker = Checker()
    torch.manual_seed(0)
    samples = common.listed(lambda: op.sample_inputs("cpu", dtype, requires_grad=True))
    for i, sample in enumerate(samples):
        checker.where = f"{op.name}.{op.variant_test_name} {dtype} #{i}"
        checker.sample(op, sample)
    return checker.tally


def main(argv=None):
    """Run the sweep, print one line, and return the exit code."""
    parser = common.parser(__doc__, "pairs of operator and dtype")
    options = parser.parse_args(argv)
    started = time.monotonic()
    common.prepare()
    jobs = [
        (index, dtype)
        for index, op in enumerate(op_db)
        for dtype in DTYPES
        if op.supports_autograd
        and dtype in op.supported_backward_dtypes("cpu")
        and op.name.startswith(options.only or "")
        and str(dtype).endswith(options.dtype or "")
    ]
    jobs = common.drawn(jobs, options.sample, options.seed)
    total = common.run_jobs(sweep, jobs, options.processes)
    total.counts = {"ops": len({index for index, _ in jobs}), **total.counts}
    return common.closed("grads", total, started)


if __name__ == "__main__":
    sys.exit(main())

"""Every operator of PyTorch, called on frozen inputs and on clones.

Each sample of the operator database is called as a function, method, operator, in-place and with
``out=``, inside a guarded function, and once more on copies without any guard. Results and what the
function sees of its inputs afterwards must be equal bit for bit, the caller's tensors untouched, and
the record must name the inputs that the plain call changed, no more and no fewer. An input of
another layout than strided is cloned on entry, so writes of it are right, and not on record.

    python -m tests.sweep ops [--sample N] [--seed S]
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from dataclasses import dataclass

import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)

from safemodule import freeze_inputs, record
from tests.sweep import common

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.bool,
)
FOREACH = (
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
)
LAYOUTS = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


# -- forms of a call -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """One way to call an operator."""

    name: str
    call: object
    pokes: bool = True
    """Whether to write results that are views, and inputs that results are views of."""


def forms_of(op):
    """Return the ways to call an operator, `out=` apart."""
    forms = [Form("function", op.op)]
    for name, get in (("method", op.get_method), ("operator", op.get_operator)):
        if get() is not None:
            forms.append(Form(name, get()))
    for name, get in (("method_", op.get_inplace), ("operator=", op.get_inplace_operator)):
        if get() is not None:
            forms.append(Form(name, get(), pokes=False))
    for alias in op.aliases:
        forms.append(Form(f"{alias.name}", alias.op))
        if alias.inplace_variant is not None:
            forms.append(Form(f"{alias.name}_", alias.inplace_variant, pokes=False))
    if isinstance(op.op, types.FunctionType) and "inplace" in inspect.signature(op.op).parameters:
        forms.append(Form("inplace=True", functools.partial(op.op, inplace=True), pokes=False))
    name = op.name.rpartition(".")[2]
    for module in (torch, torch.nn.functional):
        call = getattr(module, f"{name}_", None)
        if call is not None:
            forms.append(Form(f"{name}_", call, pokes=False))
    return forms


def outs_for(result, thorough):
    """Yield (name, out) for the `out=` arguments that suit a result: right, empty, with gaps."""
    several = isinstance(result, (list, tuple))
    parts = list(result) if several else [result]
    if not parts or not all(
        isinstance(part, torch.Tensor) and part.layout is torch.strided for part in parts
    ):
        return
    makers = {
        "out=": lambda t: torch.ones(t.shape, dtype=t.dtype),
        "out=empty": lambda t: torch.empty(0, dtype=t.dtype),
    }
    if thorough:
        makers["out=gaps"] = lambda t: torch.ones((*t.shape, 2), dtype=t.dtype)[..., 1]
    for name, make in makers.items():
        made = [make(part) for part in parts]
        yield name, tuple(made) if several else made[0]


def apart(call):
    """Return an in-place call that reads a copy of what it writes.

    Left alone, `x.addmm_(x, y)` reads elements that it has written already.
    """
    return lambda input, *args, **kwargs: call(input, args[0].clone(), *args[1:], **kwargs)  # noqa: A006


def alike(one, other):
    """Tell whether one tensor may stand for another."""
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)
    )


# -- one call --------------------------------------------------------------------------------------


def poke(tensor):
    """Write a tensor of any dtype in place; returns the error, or None."""
    try:
        if tensor.dtype is torch.bool:
            tensor.logical_not_()
        else:
            tensor.add_(1)
    except RuntimeError as error:  # one element stands in many places
        return common.Raised(error)


def body(call, then, input, args, kwargs):  # noqa: A002 -- the name that the record shows
    """Call the operator, then write what shares memory.

    Args:
        call: The operator in one of its forms.
        then: "result" to write the results that are views, "input" to write what they view.
        input: First argument of the operator.
        args: The others.
        kwargs: The named ones.

    Returns:
        The result or the error; which inputs each result is, or shares memory with; the inputs.
    """
    values = {"input": input, "args": args, "kwargs": kwargs}
    torch.manual_seed(0)
    try:
        result = call(input, *args, **kwargs)
    except Exception as error:
        return common.Raised(f"{type(error).__name__}: {error}"), None, values
    outs = [out for _, out in common.walk(result)]
    ours = list(common.inputs_of(values).items())
    relations = [
        [f"is {path}" for path, x in ours if out is x]
        or [f"views {path}" for path, x in ours if common.shared(out, x)]
        for out in outs
    ]
    if then == "result":
        relations += [poke(out) for out, related in zip(outs, relations, strict=True) if related]
    elif then == "input":
        viewed = [x for _, x in ours if any(common.shared(out, x) for out in outs)]
        relations += [poke(x) for x in viewed]
    return result, relations, values


guarded = freeze_inputs(body)


def writes_unseen(op):
    """Tell whether a call may be said to write what looks the same afterwards.

    Running statistics are written without moving the version counter, and with a momentum of 0 by
    the values they have. `out=` is asked for, but PyTorch itself forgets it where `fft.ihfftn` has
    one dimension to transform.
    """
    return op.endswith(("(training=True)", "_batch_norm_with_update", "(out=)"))


class Checker:
    """Makes calls both ways and compares."""

    def __init__(self):
        self.tally = common.Tally()
        self.where = ""
        self.geometry_is_used = False
        """`as_strided` names places in memory: a copy that is made after it has the same ones."""

    def check(self, call, values, then="", plain=None):
        """Compare one call; returns the result and the relations of the plain one.

        `plain`: what to call without a guard, if something else.
        """
        originals = common.inputs_of(values)
        pictures = {path: common.Picture(x) for path, x in originals.items()}
        with record() as log:
            result, relations, inputs = guarded(call, then, **values)
        faults = [
            f"the caller's {path}: {changes}"
            for path, picture in pictures.items()
            if (changes := picture.changes())
        ]
        moved = {
            path
            for path, x in common.inputs_of(inputs).items()
            if not common.shared(x, originals.get(path, x))
        }
        oracle, changed = self._plain(plain or call, then, values, moved)
        for what, ours, theirs in zip(
            ("result", "relations", "inputs"), (result, relations, inputs), oracle, strict=True
        ):
            found = common.difference(ours, theirs)
            if found:
                faults.append(f"{what}: {found}")
        able = {path for path, x in originals.items() if common.ordinary(x)}
        # A write that failed is not on record, whatever it did before; the copy is made by then.
        expected = set() if isinstance(oracle[0], common.Raised) else changed & able
        failed = any(isinstance(x, common.Raised) for x in (oracle[0], *(oracle[1] or ())))
        missed = expected - {m.argument for m in log}
        if missed:
            faults.append(f"not on record: {sorted(missed)}")
        false = {m.argument for m in log if not writes_unseen(m.op)} - expected
        if false:
            faults.append(f"on record and not written: {sorted(false)}")
        needless = (moved & able) - changed - {m.argument for m in (*log, *log.copies)}
        if needless and not failed:
            faults.append(f"copied and not written: {sorted(needless)}")
        self.tally.counts["calls"] += 1
        self.tally.counts["equal"] += not faults
        self.tally.failures += [f"{self.where}: {fault}" for fault in faults]
        return oracle[:2]

    def _plain(self, call, then, values, moved):
        """Run without a guard, on clones of what was redirected and on twins of the rest."""
        apart = {
            id(x)
            for path, x in common.inputs_of(values).items()
            if (path not in moved or self.geometry_is_used) and not common.settled(x)
        }
        copies = common.rebuilt(
            values, lambda x: common.twin(x) if id(x) in apart else x.detach().clone()
        )
        pictures = {path: common.Picture(x) for path, x in common.inputs_of(copies).items()}
        oracle = body(call, then, **copies)
        return oracle, {path for path, picture in pictures.items() if picture.changes()}


# -- one operator ----------------------------------------------------------------------------------


def samples_of(op, dtype):
    """Yield (name, sample) for all that the database has, with gaps and in sparse layouts too."""
    torch.manual_seed(0)
    samples = common.listed(lambda: op.sample_inputs("cpu", dtype, requires_grad=False))
    for i, sample in enumerate(samples):
        yield f"{i}", sample
    if dtype is torch.float32:
        for i, sample in enumerate(samples):
            parts = (sample.input, sample.args, sample.kwargs)
            if all(common.ordinary(x) for _, x in common.walk(parts)):
                yield f"{i} with gaps", sample.noncontiguous()
    for layout in LAYOUTS:
        if op.supports_sparse_layout(layout):
            made = common.listed(lambda: op.sample_inputs_sparse(layout, "cpu", dtype))
            for i, sample in enumerate(made):
                yield f"{i} {layout}", sample


def sweep(job):
    """Check one operator in one dtype; returns a tally."""
    index, dtype = job
    checker = Checker()
    if index < len(op_db):
        _sweep_op(checker, op_db[index], dtype)
    else:
        _sweep_foreach(checker, FOREACH[index - len(op_db)], dtype)
    return checker.tally


def _sweep_op(checker, op, dtype):
    name = f"{op.name}.{op.variant_test_name}".rstrip(".")
    thorough = dtype is torch.float32
    forms = forms_of(op)
    checker.geometry_is_used = op.name == "as_strided"
    for label, sample in samples_of(op, dtype):
        values = {"input": sample.input, "args": sample.args, "kwargs": sample.kwargs}
        result = None
        for form in forms:
            checker.where = f"{name} {form.name} {dtype} #{label}"
            result_of_form, relations = checker.check(form.call, values)
            if form is forms[0]:
                result = result_of_form
            if form.pokes and relations is not None and any(relations):
                for then in ("result", "input"):
                    checker.where = f"{name} {form.name} {dtype} #{label} then write the {then}"
                    checker.check(form.call, values, then)
        if op.supports_out:
            for form, out in outs_for(result, thorough):
                checker.where = f"{name} {form} {dtype} #{label}"
                checker.check(op.op, {**values, "kwargs": {**sample.kwargs, "out": out}})
            if alike(sample.input, result):
                checker.where = f"{name} out=input {dtype} #{label}"
                checker.check(op.op, {**values, "kwargs": {**sample.kwargs, "out": sample.input}})
        if sample.args and alike(sample.input, sample.args[0]):
            twice = {**values, "args": (sample.input, *sample.args[1:])}
            for form in forms:
                checker.where = f"{name} {form.name} {dtype} #{label} input given twice"
                checker.check(form.call, twice, plain=None if form.pokes else apart(form.call))


def _sweep_foreach(checker, op, dtype):
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=False, noncontiguous=False)
    for i, sample in enumerate(samples):
        values = {"input": sample.input, "args": sample.args, "kwargs": sample.kwargs}
        for call in (op.method_variant, op.inplace_variant):
            if call is not None:
                checker.where = f"{call.__name__} {dtype} #{i}"
                checker.check(call, values)


def main(argv=None):
    """Run the sweep, print one line, and return the exit code."""
    parser = common.parser(__doc__, "pairs of operator and dtype")
    options = parser.parse_args(argv)
    started = time.monotonic()
    common.prepare()
    jobs = [
        (index, dtype)
        for index, op in enumerate((*op_db, *FOREACH))
        for dtype in DTYPES
        if dtype in op.dtypes
        and op.name.startswith(options.only or "")
        and str(dtype).endswith(options.dtype or "")
    ]
    jobs = common.drawn(jobs, options.sample, options.seed)
    total = common.run_jobs(sweep, jobs, options.processes)
    total.counts = {"ops": len({index for index, _ in jobs}), **total.counts}
    return common.closed("ops", total, started)


if __name__ == "__main__":
    sys.exit(main())

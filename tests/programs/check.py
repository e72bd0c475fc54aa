"""Run a program guarded, on clones and in the reference, and compare."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import linecache
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

import safemodule
from tests.programs import functions
from tests.programs.reference import Ref, Run, Undefined, value_of

RTOL = ATOL = 1e-9
_numbers = itertools.count()


def data(*shape, seed=0):
    """Return float64 numbers between -1 and 1, no two of them alike."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 1.7 + 0.6 * seed + 0.3).sin().view(shape)


@dataclasses.dataclass
class Program:
    """Python source in two parts: what makes the inputs, and what is run on them."""

    inputs: str
    """Defines `args` (a tuple for `forward`), `leaves` and `p` (parameters)."""
    body: str
    """Defines `forward`, with inner functions before it."""

    def source(self):
        """Return the program as a script that runs on its own."""
        return (
            "import torch\nimport torch.nn.functional as F\n\n"
            "from safemodule import SafeModule, freeze, freeze_inputs\n"
            "from tests.programs.check import Program, check, data\n\n"
            f"INPUTS = '''\n{self.inputs}'''\nBODY = '''\n{self.body}'''\n"
            "check(Program(INPUTS.lstrip(), BODY.lstrip()))\n"
        )


class Mismatch(AssertionError):
    """The guarded run of a program is not as if its inputs had been cloned."""


@dataclasses.dataclass
class Outcome:
    """What one run gave."""

    values: list
    gradients: list


class Caller:
    """The caller's side of one run: its tensors, and whether they are what they were."""

    def __init__(self, program):
        self.space = {"torch": torch, "F": F, "data": data, **functions.ALL}
        exec(_code(program.inputs, "inputs"), self.space)
        del self.space["__builtins__"]
        self.args = self.space["args"]
        self.leaves = self.space["leaves"]
        self.tensors = list(tensors_in([self.space[name] for name in sorted(self.space)]))
        self.before = [_state(t) for t in self.tensors]
        self.items = _items(self.args)

    def untouched(self):
        for x, (value, *state) in zip(self.tensors, self.before, strict=True):
            now, *facts = _state(x)
            if not _same(value, now):
                raise Mismatch(f"the caller's tensor was {value}, is {now}")
            if state != facts:
                raise Mismatch(f"the caller's tensor had {state}, has {facts}")
        if _items(self.args) != self.items:
            raise Mismatch("the caller's containers have changed")

    def write_all(self):
        """Overwrite what was passed: a snapshot does not notice."""
        for x in tensors_in(self.args):
            part = x.detach()
            while part.ndim and 0 in part.stride():
                part = part.select(part.stride().index(0), 0)
            part.zero_()


def _state(x):
    return (
        x.detach().clone(), x._version, x.shape, x.stride(), x.storage_offset(),
        x.untyped_storage()._cdata,
        x.requires_grad, x.grad_fn, type(x),
    )  # fmt: skip


def _items(value):
    if isinstance(value, dict):
        return [(key, id(item), _items(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(id(item), _items(item)) for item in value]
    return None


def tensors_in(value):
    """Yield the tensors in nested containers."""
    if isinstance(value, (Tensor, Ref)):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


_cache = {}


def _code(source, name):
    code = _cache.get(source)
    if code is None:
        if len(_cache) > 8:
            _cache.clear()
        filename = f"<program {name} {next(_numbers)}>"
        code = _cache[source] = compile(source, filename, "exec")
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return code


# -- the runs --------------------------------------------------------------------------------------


def run_reference(program):
    """Return the run, the caller and the results as they came."""
    caller = Caller(program)
    code = _code(program.body, "body")
    run = Run(code.co_filename)
    caller.space.update(run.namespace())
    exec(code, caller.space)
    out = caller.space["forward"](*caller.args)
    return run, caller, out


def run_guarded(program):
    """Return the log, the caller and the results of the guarded program."""
    caller = Caller(program)
    code = _code(program.body, "body")
    for name in ("SafeModule", "freeze", "freeze_inputs"):
        caller.space[name] = getattr(safemodule, name)
    exec(code, caller.space)
    with safemodule.record() as log:
        out = caller.space["forward"](*caller.args)
    return log, caller, out


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
    got = outcome(
        guarded_out,
        guarded_caller.leaves,
        twice=_twice(program),
        before_backward=guarded_caller.write_all if snapshot else lambda: None,
    )
    compare(got, expected)
    if not snapshot:
        guarded_caller.untouched()
    body = _code(program.body, "body").co_filename
    writes = {(m.lineno if m.filename == body else 0, m.argument) for m in log}
    if writes != run.writes:
        raise Mismatch(f"on record are {sorted(writes)}, written were {sorted(run.writes)}")
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
    body = _code(program.body, "body").co_filename
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


def _same(a, b):
    return (
        torch.equal(torch.view_as_real(a), torch.view_as_real(b))
        if a.is_complex()
        else (torch.equal(a, b))
    )


# -- plain PyTorch ---------------------------------------------------------------------------------


def run_plain(program):
    """Run a program on clones, without the library and without the reference."""
    caller = Caller(program)

    def freeze_inputs(func=None, *, snapshot=False, mutable=()):
        if func is None:
            return functools.partial(freeze_inputs, mutable=mutable)
        signature = inspect.signature(func)

        def guarded(*args, **kwargs):
            known = {}
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if name not in mutable:
                    bound.arguments[name] = _cloned(value, known)
            return func(*bound.args, **bound.kwargs)

        return guarded

    class SafeModule:
        def __call__(self, *args, **kwargs):
            return freeze_inputs(self.forward)(*args, **kwargs)

    caller.space.update(
        freeze=lambda x, *, name: _cloned(x, {}), freeze_inputs=freeze_inputs, SafeModule=SafeModule
    )
    exec(_code(program.body, "body"), caller.space)
    return caller, caller.space["forward"](*caller.args)


def _cloned(value, known):
    if isinstance(value, Tensor):
        with torch.enable_grad():
            return known.setdefault(id(value), (value, value.clone()))[1]
    if isinstance(value, dict):
        return {key: _cloned(item, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_cloned(item, known) for item in value])
    return value


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

"""A program, and the ways to run it: guarded, in the reference, and on clones in plain PyTorch."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import linecache

import torch
import torch.nn.functional as F
from torch import Tensor

import safemodule
from tests.programs import functions
from tests.programs.calls import Run
from tests.programs.memory import Value

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


class Caller:
    """The caller's side of one run: its tensors, and whether they are what they were."""

    def __init__(self, program):
        self.space = {"torch": torch, "F": F, "data": data, **functions.ALL}
        exec(code_of(program.inputs, "inputs"), self.space)
        del self.space["__builtins__"]
        self.args = self.space["args"]
        leaves = self.space["leaves"]  # made small, a program may have one that stands alone
        self.leaves = [leaves] if isinstance(leaves, Tensor) else leaves
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
    if isinstance(value, (Tensor, Value)):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


_cache = {}


def code_of(source, name):
    """Return the compiled source, in a file whose lines tracebacks and records can show."""
    code = _cache.get(source)
    if code is None:
        if len(_cache) > 8:
            _cache.clear()
        filename = f"<program {name} {next(_numbers)}>"
        code = _cache[source] = compile(source, filename, "exec")
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return code


def _same(a, b):
    return (
        torch.equal(torch.view_as_real(a), torch.view_as_real(b))
        if a.is_complex()
        else (torch.equal(a, b))
    )


def run_reference(program):
    """Return the run, the caller and the results as they came."""
    caller = Caller(program)
    code = code_of(program.body, "body")
    run = Run(code.co_filename)
    caller.space.update(run.namespace())
    exec(code, caller.space)
    out = caller.space["forward"](*caller.args)
    return run, caller, out


def run_guarded(program):
    """Return the log, the caller and the results of the guarded program."""
    caller = Caller(program)
    code = code_of(program.body, "body")
    for name in ("SafeModule", "freeze", "freeze_inputs"):
        caller.space[name] = getattr(safemodule, name)
    exec(code, caller.space)
    with safemodule.record() as log:
        out = caller.space["forward"](*caller.args)
    return log, caller, out


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
    exec(code_of(program.body, "body"), caller.space)
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

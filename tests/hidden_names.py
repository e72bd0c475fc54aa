"""Use the library as on a torch that lacks one of the names that it looks up; run as a script.

Each file of the library that holds private names of torch asks for them by `getattr` or `hasattr`.
These are replaced there: once by ones that note the names, then, for each name in a process of its
own, by ones that do not find it. Prints what came of each name as JSON.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import json
import logging
import os
import sys
import traceback
import warnings

import torch
import torch._dynamo
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

# Not private names of torch.
OURS = {"only_watches", "_safemodule_inside", "name"}
# What clones on entry do not give: values read before a write, and records.
NEEDS_SWAP = {"read, written, differentiated", "record"}


class Hide:
    """Imports the files of private names with functions that do not find one of them."""

    def __init__(self, name):
        self.name, self.asked = name, {}

    def find_spec(self, fullname, path, target=None):
        """Find the file as ever, and have it loaded with the functions."""
        if not (fullname.startswith("safemodule.") and fullname.endswith("_compat")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        run = spec.loader.exec_module

        def exec_module(module):
            self.put_into(module)
            run(module)

        spec.loader.exec_module = exec_module
        return spec

    def put_into(self, module):
        """Let the functions of a module look up names here."""
        kind = next((kind for kind in SCENARIOS if kind in module.__name__), "call")

        def look_up(thing, name, *default):
            if not default:  # an attribute that changes from use to use, and no fallback
                return builtins.getattr(thing, name)
            self.asked.setdefault(name, set()).add(kind)
            return default[0] if name == self.name else builtins.getattr(thing, name, default[0])

        def is_there(thing, name):
            return look_up(thing, name, missing) is not missing

        missing = object()
        module.getattr, module.hasattr = look_up, is_there


class Watch(TorchDispatchMode):
    """A mode of the user's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def compiles():
    """Yield what compiled calls give."""
    from safemodule import freeze_inputs

    @freeze_inputs
    def write(x):
        x[0].mul_(3)
        return x + x.sum()

    x = torch.ones(2, 2)
    yield "compiled", torch.compile(write, backend="eager")(x).tolist()
    weight = torch.ones(2, 2, requires_grad=True)
    compiled = torch.compile(lambda x: write(x * weight), backend="eager")
    yield "differentiated", torch.autograd.grad(compiled(x).sum(), weight)[0].tolist()
    yield "given", x.tolist()


def explains():
    """Yield what `explain` says of an error; it may know less, but names the write."""
    import safemodule

    text = ""
    try:
        with safemodule.explain():
            total = 0
            w, counted = torch.ones(3, requires_grad=True), torch.ones(3)
            for _ in range(2):
                total = total + (w * counted).sum()
                counted.add_(1)
            total.backward()
    except safemodule.InplaceError as error:
        text = str(error)
    yield "explain", "version 2; expected version 1" in text
    yield "names the write", "written by add_, to version 2" in text


def calls():
    """Yield names and values of what users do; each value is the same whatever is hidden."""
    import safemodule
    from safemodule import SafeModule, freeze, freeze_inputs, guard, record

    def given():
        return torch.arange(6.0).view(2, 3).requires_grad_()

    class Net(SafeModule):
        def forward(self, x, batch):
            row = x[0]
            y = x + row
            row.mul_(2)
            x.add_(1)
            batch["k"][0].mul_(x.detach().sum())
            return y * x, batch["k"]

    x, batch = given(), {"k": [torch.ones(2)]}
    y, k = Net()(x * 1, batch)
    (grad,) = torch.autograd.grad(y.sum(), x)
    yield "call", [y.tolist(), k[0].tolist(), grad.tolist(), batch["k"][0].tolist()]
    yield "plain", [type(y) is torch.Tensor, type(k) is list, type(k[0]) is torch.Tensor]

    if safemodule._compat.CAN_SWAP:

        @freeze_inputs
        def reads_first(x):
            y = x * x
            x[0].zero_()
            return y + x

        x = given()
        with record() as log:
            (grad,) = torch.autograd.grad(reads_first(x).sum(), x)
        yield "read, written, differentiated", grad.tolist()
        yield "record", [write.op for write in log]

    frozen = freeze(x := torch.ones(2))
    frozen.add_(1)
    yield "freeze", [frozen.tolist(), x.tolist()]

    kept = freeze_inputs(snapshot=True)(lambda x: x)(x)
    x.add_(5)
    yield "snapshot", kept.tolist()

    linear = torch.nn.Sequential(torch.nn.ReLU(inplace=True))
    guard(linear)
    yield "guard", [linear(x := torch.tensor([-1.0, 1.0])).tolist(), x.tolist()]

    write = freeze_inputs(lambda x: x.mul_(3) + x.sum())
    x = given()
    yield "vmap", torch.func.vmap(write)(x.detach()).tolist()
    yield "grad", torch.func.grad(lambda x: write(x * 1).sum())(x.detach()).tolist()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones(2, 3))
        yield "dual", forward_ad.unpack_dual(write(dual)).tangent.tolist()
    with Watch():
        yield "mode", write(x * 1).tolist()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        yield "hooks", torch.autograd.grad(write(x * 1).sum(), x)[0].tolist()
    yield "jit", torch.jit.trace(write, x.detach(), check_trace=False)(x.detach()).tolist()
    yield "caller", x.tolist()


def run(name, kinds):
    """Return what the scenarios gave, the warnings of this library, and the names asked for."""
    hide = Hide(name)
    sys.meta_path.insert(0, hide)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            values = {
                what: (kind, what in NEEDS_SWAP, value)
                for kind in kinds
                for what, value in SCENARIOS[kind]()
            }
        except Exception:
            values = {"error": ("", False, traceback.format_exc())}
    said = [str(w.message) for w in seen if str(w.message).startswith("safemodule")]
    return {
        "values": values,
        "warnings": said,
        "asked": {k: sorted(v) for k, v in hide.asked.items() if k not in OURS},
    }


SCENARIOS = {"call": calls, "compile": compiles, "explain": explains}


def in_a_child(name, *kinds):
    """Run with a name hidden in a copy of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, json.dumps(run(name, kinds)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as result:
        text = result.read()
    os.waitpid(child, 0)
    return (
        json.loads(text)
        if text
        else {"values": {"error": ("", False, "died")}, "warnings": [], "asked": {}}
    )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = {"": in_a_child(None, *SCENARIOS)}
    for hidden, used_by in found[""]["asked"].items():
        found[hidden] = in_a_child(hidden, *used_by)
    sys.stdout.write(json.dumps(found))

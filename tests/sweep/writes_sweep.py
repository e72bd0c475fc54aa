"""Is "which arguments does this call write?" answered right, over PyTorch's operator database?

Every operator is called in every form (function, method, operator, in-place, ``out=``), and every
function that the call passes through is watched: the arguments that changed must be the ones that
`effect_of` named, no result may share memory where it said none can, and an in-place operator whose
result autograd saves must be known to save it.

    python -m tests.sweep.writes_sweep [--sample N] [--seed S]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import inspect
import random
import sys
import types
import warnings

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils._python_dispatch import TorchDispatchMode

from safemodule._writes import Kind, effect_of
from safemodule._writes_tables import RESULT_NOT_SAVED
from tests.sweep.common import shared

FOREACH = (
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
)
# Named as written, and not written: PyTorch leaves out= as it is when ihfftn has one dimension to
# transform, and empty(out=) is asked for no values.
UNWRITTEN = ("empty(out=)", "fft_ihfft2(out=)", "fft_ihfftn(out=)")
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def tensors_in(value, found=None):
    """Return the tensors in nested lists, tuples and dicts, each once."""
    found = [] if found is None else found
    if isinstance(value, torch.Tensor):
        if not any(value is other for other in found):
            found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_in(item, found)
    return found


def image(tensor):
    """Return what a write can change: value, version, sizes."""
    with torch.no_grad():
        plain = tensor.detach()
        if plain.layout is torch.strided and not plain.is_quantized:
            value = plain.resolve_conj().resolve_neg().clone()
            geometry = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        else:
            value, geometry = plain.clone(), (tuple(tensor.shape),)
    version = None if tensor.is_inference() else tensor._version
    return version, geometry, value


def same_value(one, other):
    """Compare bit for bit where possible, so that NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_quantized:
        one, other = one.int_repr(), other.int_repr()
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if one.numel() == 0:
        return True
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


class Watcher(TorchFunctionMode):
    """Compare what each call changes with what `effect_of` says of it."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.functions = set()
        self.overloads = set()
        self.underneath = Underneath(self)
        self.faults = []
        self.missed = self.false = self.aliased = 0
        self.where = ""

    def fault(self, kind, effect, detail):
        """Take down one wrong answer."""
        self.faults.append(f"{kind}: {effect.name} ({self.where}): {detail}")

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        """Run one call between two looks at its arguments."""
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        effect = effect_of(func)
        named = list(effect.written(args, kwargs)) if effect.kind is Kind.WRITE else []
        before = [image(tensor) for tensor in given]
        result = func(*args, **kwargs)
        self.calls += 1
        self.functions.add(func)
        for tensor, (version, geometry, value) in zip(given, before, strict=True):
            self.compare(effect, tensor, named, version, geometry, value)
        self.compare_results(effect, result, given, named)
        return result

    def compare_results(self, effect, result, given, named):
        """Look for results that share memory with an argument against the promise."""
        if effect.may_alias:
            return
        for tensor in tensors_in(result):
            for source in given:
                if any(tensor is w or source is w for w in named):
                    continue
                if shared(tensor, source):
                    self.aliased += 1
                    self.fault("alias", effect, f"{tuple(source.shape)} {source.dtype}")

    def compare(self, effect, tensor, named, version, geometry, value):
        """Judge one argument after the call; without a version its value alone tells."""
        now_version, now_geometry, now = image(tensor)
        if version is None:
            now_version = None
        if effect.kind is Kind.METADATA:
            return
        changed = (
            now_version != version or now_geometry != geometry or not same_value(now, value)
        ) and effect.kind is not Kind.STATE
        expected = any(tensor is w for w in named)
        if changed and not expected and not any(shared(tensor, w) for w in named):
            self.missed += 1
            self.fault("missed", effect, f"{tuple(tensor.shape)} {tensor.dtype}")
        # Running statistics are written without moving the version, sometimes by equal values.
        quiet = "norm" in effect.name or effect.name in UNWRITTEN or version is None
        quiet = quiet or tensor.numel() == 0
        if expected and not changed and not quiet:
            self.false += 1
            self.fault("false alarm", effect, f"{tuple(tensor.shape)} {tensor.dtype}")


class Underneath(TorchDispatchMode):
    """The same for the overloads that PyTorch calls underneath, by the schema alone."""

    def __init__(self, watcher):
        super().__init__()
        self.watcher = watcher

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        """Run one overload between two looks at its arguments."""
        kwargs = kwargs or {}
        effect, packet = effect_of(func), effect_of(func.overloadpacket)
        given = tensors_in((args, kwargs))
        before = [image(tensor) for tensor in given]
        named = list(effect.written(args, kwargs)) if effect.kind is Kind.WRITE else []
        resolved = list(packet.written(args, kwargs)) if packet.kind is Kind.WRITE else []
        result = func(*args, **kwargs)
        watcher = self.watcher
        watcher.overloads.add(func)
        if not any(tensor.numel() == 0 for tensor in given) and (
            {id(t) for t in named} != {id(t) for t in resolved}
        ):
            watcher.fault("packet differs", effect, f"{len(named)}, {len(resolved)}")
        for tensor, (_, geometry, value) in zip(given, before, strict=True):
            watcher.compare(effect, tensor, named, None, geometry, value)
        watcher.compare_results(effect, result, given, named)
        return result


def outputs_for(result):
    """Return an `out=` argument of the form of a result, or None."""
    if isinstance(result, torch.Tensor):
        return torch.ones_like(result)
    if isinstance(result, (list, tuple)) and all(isinstance(r, torch.Tensor) for r in result):
        return tuple(torch.ones_like(r) for r in result)
    return None


def forms_of(op):
    """Yield (name, callable, in-place) for each way to call an operator."""
    yield "function", op, False
    for name, get in (("method", op.get_method), ("operator", op.get_operator)):
        if get() is not None:
            yield name, get(), False
    for get in (op.get_inplace, op.get_inplace_operator):
        if get() is not None:
            yield "in-place", get(), True
    name = op.name.rpartition(".")[2]
    if "inplace" in parameters_of(op.op):
        yield "inplace=True", functools.partial(op, inplace=True), True
    for module in (torch, torch.nn.functional, torch.Tensor):
        call = getattr(module, f"{name}_", None)
        if call is not None:
            yield f"{name}_", call, True


def parameters_of(func):
    """Return the names of a Python function's parameters."""
    return inspect.signature(func).parameters if isinstance(func, types.FunctionType) else ()


def copied(value):
    """Return the structure with every tensor cloned."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        items = [copied(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def watched_call(watcher, call, sample, **more):
    """Run one call on copies of its inputs twice: watched from above, watched from below."""
    for watch in (watcher, watcher.underneath):
        input_, args, kwargs = (copied(v) for v in (sample.input, sample.args, sample.kwargs))
        # An in-place form may not exist for this sample, nor an out= for this result.
        with contextlib.suppress(Exception), watch:
            call(input_, *args, **kwargs, **copied(more))


def sweep_op(op, dtype, watcher, most=None):
    """Call one operator in every form with every sample."""
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in samples[:most]:
        for form, call, _ in forms_of(op):
            watcher.where = f"{op.name} {form} {dtype}"
            watched_call(watcher, call, sample)
        if op.supports_out:
            watcher.where = f"{op.name} out= {dtype}"
            input_, args, kwargs = (copied(v) for v in (sample.input, sample.args, sample.kwargs))
            with contextlib.suppress(Exception):
                out = outputs_for(op(input_, *args, **kwargs))
                watched_call(watcher, op, sample, out=out)


def sweep_foreach(op, dtype, watcher, most=None):
    """Call a foreach operator and its in-place form."""
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False, noncontiguous=False))
    for sample in samples[:most]:
        for call in (op.method_variant, op.inplace_variant):
            if call is not None:
                watcher.where = f"{op.name} {dtype}"
                watched_call(watcher, call, sample)


class Saves(TorchFunctionMode):
    """See which in-place function a call goes through, and bump the version of its result."""

    def __init__(self):
        super().__init__()
        self.effect = None

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        """Remember the first in-place call."""
        effect = effect_of(func)
        if effect.kind is Kind.WRITE and effect.written(args, kwargs or {}):
            self.effect = effect
        return func(*args, **(kwargs or {}))


def sweep_saved(op, most=None):
    """Yield (effect, saves) for each in-place call that autograd records."""
    if not op.supports_autograd:
        return
    samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
    for sample in samples[:most]:
        for form, call, in_place in forms_of(op):
            if not in_place and form != "function":
                continue
            saved = _saves_result(call, sample)
            if saved is not None:
                yield saved


def in_place_calls():
    """Yield (call, arguments) for in-place forms that the database has no inputs for."""
    x, y = (torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    row = torch.tensor([1, 0])
    mask = torch.tensor([[True, False, True], [False, True, False]])
    keys = (0, slice(None, 1), (..., 1), mask, row, (row, row), None, ([0, 1], slice(0, 2)))
    for key in keys:
        yield torch.Tensor.__setitem__, (x, key, 2.0)
        yield torch.Tensor.__setitem__, (x, key, y[0, 0])
    for key in keys[:2]:
        yield torch.Tensor.__setitem__, (x, key, y[0])
    for name in ("add", "copy", "div", "divide", "mul", "multiply", "sub", "subtract", "arctan2"):
        yield getattr(torch.Tensor, f"{name}_"), (x, y)
    for name in ("absolute", "arccos", "arcsin", "arctan", "fix", "negative", "uniform", "zero"):
        yield getattr(torch.Tensor, f"{name}_"), (x,)
    yield torch.Tensor.clip_, (x, 0.2, 0.7)
    yield torch.Tensor.fill_diagonal_, (x, 1.0)
    image = torch.rand(1, 2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    for call in (torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_):
        yield call, (image, 0.5, True)
    yield torch.feature_alpha_dropout_, (image, 0.5, True)
    yield functools.partial(torch.nn.functional.dropout1d, inplace=True), (image[0, 0],)
    functional = torch.nn.functional
    yield functools.partial(functional.dropout, inplace=True), (x,)
    for call in (torch._C._nn.hardsigmoid_, torch._C._nn.hardswish_, torch._C._nn.relu6_):
        yield call, (x,)
    for call in (torch._C._nn.silu_, torch._C._nn.mish_):
        yield call, (x,)


def _saves_result(call, sample):
    """Say whether a write to the result breaks the gradient of one call, None if unknown."""
    return saves_result(call, (sample.input, sample.args, sample.kwargs))


def saves_result(call, given):
    """Judge ``call(given[0], *given[1], **given[2])``, as `_saves_result`."""
    leaves = tensors_in(given)
    seen = Saves()
    try:
        args = _tracked(given)
        target = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        with seen:
            call(args[0], *args[1], **args[2])
        if seen.effect is None or not target.requires_grad:
            return None
        with torch.no_grad():
            target.zero_()
        target.sum().backward()
    except RuntimeError as error:
        if seen.effect is not None and "modified by an inplace operation" in str(error):
            return seen.effect, True
        return None
    except Exception:
        return None
    finally:
        for leaf in leaves:
            leaf.grad = None
    return seen.effect, False


def _tracked(value):
    """Return the structure with every tensor replaced by a non-leaf copy."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        items = [_tracked(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _tracked(item) for key, item in value.items()}
    return value


def main(argv=None):
    """Run the sweep, print one line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=None, help="operators to draw (all)")
    parser.add_argument("--samples", type=int, default=None, help="inputs per operator (all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    jobs = [(sweep_op, op) for op in op_db] + [(sweep_foreach, op) for op in FOREACH]
    random.Random(options.seed).shuffle(jobs)
    jobs = jobs[: options.sample]
    watcher = Watcher()
    saved = collections.defaultdict(set)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sweep, op in jobs:
            for dtype in DTYPES:
                if dtype in op.dtypes:
                    try:
                        sweep(op, dtype, watcher, options.samples)
                    except Exception as error:
                        watcher.faults.append(f"no samples: {op.name} {dtype}: {error!r}"[:200])
            if sweep is sweep_op:
                for effect, saves in sweep_saved(op, options.samples):
                    saved[effect].add(saves)
    for call, given in in_place_calls():
        found = saves_result(call, (given[0], given[1:], {}))
        if found is not None:
            saved[found[0]].add(found[1])
    for effect, seen in saved.items():
        if True in seen and not effect.saves_result:
            watcher.faults.append(f"saves its result, though said not to: {effect.name}")
    if options.sample is None:
        confirmed = {_plain(effect.name) for effect in saved}
        unseen = RESULT_NOT_SAVED - confirmed
        watcher.faults += [f"never seen under grad: {name}" for name in unseen]
    for line in sorted(set(watcher.faults)):
        print(line)
    print(
        f"writes: ops {len(jobs)}, functions {len(watcher.functions)}, "
        f"overloads {len(watcher.overloads)}, calls {watcher.calls}, misses {watcher.missed}, "
        f"false alarms {watcher.false}, unsaid aliases {watcher.aliased}, "
        f"in-place under grad {len(saved)}, faults {len(set(watcher.faults))}"
    )
    return 1 if watcher.faults else 0


def _plain(name):
    """Return ``relu_`` for ``relu(inplace=True)``."""
    return name.replace("(inplace=True)", "_")


if __name__ == "__main__":
    sys.exit(main())

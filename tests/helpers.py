"""What tests share: copies of inputs, facts about the caller's side, comparison with clones."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import pathlib
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from safemodule import Mutation, SafeModule, record
from safemodule._tensor import FrozenTensor

# -- walking nested values -------------------------------------------------------------------------


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a container holds, each with its path; [] for everything else."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{key}", item) for key, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple, collections.deque)) and not isinstance(value, torch.Size):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, (Tensor, nn.Module, type)) or callable(value):
        return []
    if dataclasses.is_dataclass(value):
        return [
            (f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)
        ]
    return [(f".{key}", item) for key, item in getattr(value, "__dict__", {}).items()]


def walk(value: Any, path: str = "") -> dict[str, Any]:
    """Return every part of a nested value by path, itself and shared parts included."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(part: Any, at: str) -> None:
        found[at] = part
        if id(part) in seen:
            return
        inside = parts(part)
        if inside:
            seen.add(id(part))
        for step, item in inside:
            visit(item, at + step)

    visit(value, path)
    return found


def tensors(value: Any) -> dict[str, Tensor]:
    """Return the tensors in a nested value by path."""
    return {path: part for path, part in walk(value).items() if isinstance(part, Tensor)}


def cloned(value: Any) -> Any:
    """Return a deep copy in which each tensor is a differentiable clone of the original's."""
    memo: dict[int, Any] = {}
    with torch.enable_grad():
        for tensor in tensors(value).values():
            if id(tensor) not in memo:
                memo[id(tensor)] = tensor.clone()
    return copy.deepcopy(value, memo)


def detached(value: Any) -> Any:
    """Return a deep copy in which no tensor requires a gradient."""
    memo = {id(tensor): tensor.detach().clone() for tensor in tensors(value).values()}
    return copy.deepcopy(value, memo)


# -- the caller's side -----------------------------------------------------------------------------


def version(tensor: Tensor) -> int | None:
    """Return the version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def storage_of(tensor: Tensor) -> tuple[int, int] | None:
    """Return identity and size of the storage; asking for an address could move a lazy copy."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def flags(tensor: Tensor) -> dict[str, Any]:
    """Return all about a tensor that a call must leave alone, except its values."""
    strided = tensor.layout is torch.strided
    return {
        "type": type(tensor),
        "shape": tuple(tensor.shape),
        "stride": tensor.stride() if strided else None,
        "offset": tensor.storage_offset() if strided else None,
        "storage": storage_of(tensor),
        "dtype": tensor.dtype,
        "version": version(tensor),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": tensor.grad_fn,
        "retains_grad": tensor.retains_grad,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "attributes": dict(tensor.__dict__),
    }


class Caller:
    """Remembers everything reachable from some arguments, to see later that nothing changed."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.parts = walk(list(values))
        self.copies = {
            path: part.detach().clone()
            for path, part in self.parts.items()
            if isinstance(part, Tensor)
        }
        self.flags = {path: flags(self.parts[path]) for path in self.copies}

    def check(self) -> None:
        """Assert that values, flags, containers and identities are what they were."""
        now = walk(list(self.values))
        assert list(now) == list(self.parts)
        for path, part in now.items():
            was = self.parts[path]
            if path:  # the list at the root was made here
                kept = part is was or not (isinstance(was, Tensor) or part != was)
                assert kept, f"another object at {path}"
            assert type(part) is type(was)
        for path, value in self.copies.items():
            assert flags(now[path]) == self.flags[path], path
            same(now[path].detach(), value, path)


def same(actual: Tensor, expected: Tensor, what: str = "", *, exact: bool = True) -> None:
    """Assert equal values, dtype and shape; bit for bit unless told otherwise."""
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(
        actual, expected, equal_nan=True, msg=lambda text: f"{what}: {text}", **tolerance
    )


# -- results ---------------------------------------------------------------------------------------


def is_plain(value: Any) -> bool:
    """Tell whether a tensor bears no trace of the library."""
    return not isinstance(value, FrozenTensor) and "_safemodule" not in value.__dict__


def assert_plain(out: Any) -> None:
    """Assert that no handle and no stand-in container is left in a result."""
    for path, part in walk(out).items():
        if isinstance(part, Tensor):
            assert is_plain(part), f"a handle at {path}"
        else:
            assert not hasattr(type(part), "_safemodule_base"), f"a stand-in at {path}"


def loss(out: Any) -> Tensor | None:
    """Return a scalar that weighs every differentiable element of a result differently."""
    total = None
    for tensor in tensors(out).values():
        if not tensor.requires_grad:
            continue
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        weights = torch.cos(torch.arange(real.numel(), dtype=torch.float64)).reshape(real.shape)
        term = (real.double() * weights).sum()
        total = term if total is None else total + term
    return total


def gradients(out: Any, leaves: list[Tensor]) -> list[Tensor | None]:
    """Return the gradients of `loss(out)`; None for each leaf where nothing flows."""
    total = loss(out)
    if total is None or not leaves:
        return [None] * len(leaves)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def leaves(*values: Any) -> list[Tensor]:
    """Return the tensors in some values whose gradient can be asked for."""
    found = {id(t): t for value in values for t in tensors(value).values() if t.requires_grad}
    return list(found.values())


def assert_same_results(
    out: Any, expected: Any, *, strides: bool = True, exact: bool = True
) -> None:
    """Assert two results equal: structure, values, dtypes, gradient flags, and strides."""
    assert_plain(out)
    mine, theirs = walk(out), walk(expected)
    assert list(mine) == list(theirs)
    for path, part in mine.items():
        other = theirs[path]
        assert type(part) is type(other), path
        if isinstance(part, Tensor):
            same(part.detach(), other.detach(), path, exact=exact)
            assert part.requires_grad == other.requires_grad, path
            if strides and part.layout is torch.strided:
                assert part.stride() == other.stride(), path
        elif not parts(part) and type(part).__eq__ is not object.__eq__:
            assert part == other, path


# -- guarding --------------------------------------------------------------------------------------


def safe(cls: type[nn.Module], **keywords: Any) -> Any:
    """Return the `SafeModule` form of a module class: the mixin in front of it."""
    return type(cls)(cls.__name__, (SafeModule, cls), {"__module__": cls.__module__}, **keywords)


def forward_of(function: Any, **keywords: Any) -> Any:
    """Return a `SafeModule` whose forward is a function of the inputs alone."""

    @functools.wraps(function)
    def forward(self, *args, **kwargs):
        return function(*args, **kwargs)

    parameters = inspect.signature(function).parameters.values()
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = inspect.Signature([this, *parameters])
    del forward.__wrapped__
    return type("Net", (SafeModule,), {"forward": forward, "__module__": __name__}, **keywords)()


class Outcome(NamedTuple):
    """What a guarded call gave."""

    out: Any
    grads: list[Tensor | None]
    writes: list[Mutation]
    """Records of writes to tensors, and of changed containers."""


def compare_with_clones(
    guarded: Any,
    forward: Any,
    make_inputs: Any,
    *,
    reference: Any = None,
    parameters: Any = (),
    strides: bool = True,
    exact: bool = True,
    backward: bool = True,
) -> Outcome:
    """Run a guarded callable and the plain one on clones, and assert the contract C1, C2 and C7.

    Args:
        guarded: What is tested.
        forward: The same, unguarded.
        make_inputs: Called without arguments, returns the tuple of positional arguments; the same
            values each time.
        reference: An out-of-place form of `forward`, where autograd refuses that on clones.
        parameters: Parameters that both use, whose gradients are compared too.
        strides: Compare strides of the results too.
        exact: Compare results and gradients bit for bit.
        backward: Compare gradients.

    Returns:
        The outcome of the guarded call.
    """
    theirs = make_inputs()
    torch.manual_seed(0)
    expected = (reference or forward)(*cloned(theirs))
    wanted = gradients(expected, [*leaves(*theirs), *parameters]) if backward else []

    mine = make_inputs()
    caller = Caller(*mine)
    torch.manual_seed(0)
    with record() as log:
        out = guarded(*mine)
    caller.check()
    assert_same_results(out, expected, strides=strides, exact=exact)
    grads = gradients(out, [*leaves(*mine), *parameters]) if backward else []
    for i, (grad, want) in enumerate(zip(grads, wanted, strict=True)):
        assert (grad is None) == (want is None), f"gradient {i}"
        if grad is not None and want is not None:
            same(grad, want, f"gradient {i}", exact=exact)
    caller.check()  # backward leaves it alone as well
    return Outcome(out, grads, list(log))


# -- lines -----------------------------------------------------------------------------------------


def line_of(marker: str, filename: str | None = None) -> int:
    """Return the number of the line that ends in the comment ``# marker`` in the caller's file."""
    if filename is None:
        filename = sys._getframe(1).f_code.co_filename
    lines = pathlib.Path(filename).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return number

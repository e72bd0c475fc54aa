"""What the sweeps share: pictures of tensors, copies, comparisons, and the two processes."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import logging
import multiprocessing
import random
import time
import unittest
import warnings
from dataclasses import dataclass, field

import torch

# -- structures ------------------------------------------------------------------------------------


def walk(value, path=""):
    """Yield (path, tensor) for each tensor in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}[{i}]")


def inputs_of(values):
    """Return {path: tensor} over named arguments, each tensor once, under its first path."""
    found, seen = {}, set()
    for name, value in values.items():
        for path, tensor in walk(value, name):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[path] = tensor
    return found


def rebuilt(value, change, memo=None):
    """Return the structure with every tensor replaced; the same tensor twice stays the same."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = change(value)
        return memo[id(value)]
    if isinstance(value, dict):
        return type(value)((key, rebuilt(item, change, memo)) for key, item in value.items())
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [rebuilt(item, change, memo) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


# -- tensors ---------------------------------------------------------------------------------------


def ordinary(x):
    """Tell whether a tensor can be redirected; others are cloned on entry."""
    return x.layout is torch.strided and not x.is_quantized and not x.is_nested


def memory(x):
    """Return every byte of the storage, gaps included."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())


def twin(x):
    """Return a copy of the same geometry: strides, offset, gaps, conjugate and negative bits."""
    if not ordinary(x):
        return x.detach().clone()
    storage = x.untyped_storage().clone()
    y = torch.empty(0, dtype=x.dtype).set_(storage, x.storage_offset(), x.size(), x.stride())
    if x.is_conj():
        torch._C._set_conj(y, True)
    if x.is_neg():
        torch._C._set_neg(y, True)
    return y


def settled(x):
    """Tell whether a clone has the geometry of the tensor itself.

    Where it has not, results may be laid out, and sums rounded, as those of the input up to the
    first write, and as those of a clone from then on.
    """
    if not ordinary(x):
        return True
    copy = x.detach().clone()
    return (
        copy.stride() == x.stride()
        and x.storage_offset() == 0
        and x.untyped_storage().nbytes() == copy.untyped_storage().nbytes()
        and not x.is_conj()
        and not x.is_neg()
    )


def version_of(x):
    """Return the version counter, None where there is none."""
    return None if x.is_inference() else x._version


class Picture:
    """All that a call may not change of a tensor."""

    def __init__(self, x):
        self.tensor = x
        self.flags = self._flags()
        self.value = memory(x).clone() if ordinary(x) else x.detach().clone()

    def _flags(self):
        x = self.tensor
        flags = [type(x), version_of(x), x.dtype, x.shape, x.layout, x.requires_grad, x.is_leaf]
        if ordinary(x):
            flags += [x.stride(), x.storage_offset(), x.is_conj(), x.is_neg(), x.data_ptr()]
            flags += [x.untyped_storage().nbytes()]
        return flags

    def changes(self):
        """Return what changed since, in words; an empty text if nothing did."""
        now = self._flags()
        if now != self.flags:
            pairs = zip(self.flags, now, strict=False)
            return ", ".join(f"{was} became {is_}" for was, is_ in pairs if was != is_)
        x = self.tensor
        if ordinary(x):
            same = torch.equal(memory(x), self.value)
        else:
            same = not difference(x.detach(), self.value)
        return "" if same else "the values changed"


def difference(a, b):
    """Return how two results differ, in words; an empty text if they are equal bit for bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _tensors_differ(a, b)
    if type(a) is not type(b):
        return f"type {type(a).__name__}, expected {type(b).__name__}"
    if isinstance(a, torch.Size):
        return "" if a == b else f"{a}, expected {b}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"keys {list(a)}, expected {list(b)}"
        return _items_differ(a.values(), b.values())
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"length {len(a)}, expected {len(b)}"
        return _items_differ(a, b)
    if hasattr(a, "__array__"):
        import numpy as np

        return "" if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") else "arrays differ"
    same = a is b or a == b or (a != a and b != b)
    return "" if same else f"{a!r}, expected {b!r}"[:200]


def _items_differ(ours, theirs):
    for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        found = difference(one, other)
        if found:
            return f"[{i}]: {found}"
    return ""


def _tensors_differ(a, b):
    if type(a) is not type(b):
        return f"type {type(a).__name__}, expected {type(b).__name__}"
    for name in ("dtype", "shape", "layout", "requires_grad", "is_quantized", "is_nested"):
        if getattr(a, name) != getattr(b, name):
            return f"{name} {getattr(a, name)}, expected {getattr(b, name)}"
    if a.is_nested or a.layout is not torch.strided:
        return _other_layouts_differ(a, b)
    for name in ("stride", "storage_offset", "is_conj", "is_neg"):
        if getattr(a, name)() != getattr(b, name)():
            return f"{name} {getattr(a, name)()}, expected {getattr(b, name)()}"
    if a.is_quantized:
        return "" if torch.equal(a, b) else "values"
    return values_differ(a.detach(), b.detach())


def _other_layouts_differ(a, b):
    if a.is_nested:
        return _items_differ(a.unbind(), b.unbind())
    if a.layout is torch.sparse_coo:
        if a.is_coalesced() != b.is_coalesced():
            return f"is_coalesced {a.is_coalesced()}"
        parts = ((a._indices(), b._indices()), (a._values(), b._values()))
    elif a.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = tuple((get(a), get(b)) for get in (_crow, _col, torch.Tensor.values))
    elif a.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = tuple((get(a), get(b)) for get in (_ccol, _row, torch.Tensor.values))
    else:
        parts = ((a.to_dense(), b.to_dense()),)
    for one, other in parts:
        found = "shape" if one.shape != other.shape else values_differ(one.detach(), other.detach())
        if found:
            return found
    return ""


_crow, _col = torch.Tensor.crow_indices, torch.Tensor.col_indices
_ccol, _row = torch.Tensor.ccol_indices, torch.Tensor.row_indices


def values_differ(a, b):
    """Return "values" and how far apart they are, unless equal; NaN equals NaN."""
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if torch.equal(a, b):
        return ""
    same = (a == b) | ((a != a) & (b != b))
    if bool(same.all()):
        return ""
    gap = (a.double() - b.double())[~same].abs()
    return f"values: {len(gap)} of {a.numel()} differ, by up to {gap.max().item():.3g}"


def shared(one, other):
    """Tell whether two tensors share memory."""
    if one is other:
        return True
    try:
        return torch._C._is_alias_of(one, other)
    except RuntimeError:  # no storage: sparse, opaque
        return False


# -- derivatives -----------------------------------------------------------------------------------


class Raised(str):
    """An error, to be compared with another by its type."""

    __slots__ = ()


def attempt(function, *args):
    """Return the result, or the error."""
    try:
        return function(*args)
    except Exception as error:
        return Raised(f"{type(error).__name__}: {error}")


def derivatives(outputs, leaves, seed, again):
    """Return the gradients of a random weighting of the outputs, None for unused leaves."""
    torch.manual_seed(seed)
    outputs = [out for out in outputs if out is not None and out.requires_grad]
    if not outputs:
        return [None] * len(leaves)
    total = 0
    for out in outputs:
        dense = out if out.layout is torch.strided else out.to_dense()
        weighted = (dense * torch.randn(dense.shape, dtype=dense.dtype)).sum()
        total = total + (weighted.real if weighted.is_complex() else weighted)
    return torch.autograd.grad(total, leaves, create_graph=again, allow_unused=True)


# Sums of gradients may change order.
_NEAR = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.bfloat16: 1e-1,
}


def gap(ours, theirs):
    """Return how two derivatives differ, in words; rounding aside, as sums may change order."""
    if isinstance(theirs, Raised) or isinstance(ours, Raised):
        one, other = (
            str(x).partition(":")[0] if isinstance(x, Raised) else "" for x in (ours, theirs)
        )
        return (
            ""
            if one == other
            else f"{ours if one else 'a result'}, expected {theirs if other else 'a result'}"
        )
    if theirs is None or ours is None:
        return "" if ours is theirs else f"{type(ours).__name__}, expected {type(theirs).__name__}"
    if isinstance(theirs, torch.Tensor):
        if type(ours) is not type(theirs):
            return f"type {type(ours).__name__}"
        if theirs.layout is not torch.strided:
            ours, theirs = ours.to_dense(), theirs.to_dense()
        for name in ("dtype", "shape", "requires_grad"):
            if getattr(ours, name) != getattr(theirs, name):
                return f"{name} {getattr(ours, name)}, expected {getattr(theirs, name)}"
        ours, theirs = ours.detach(), theirs.detach()
        near = _NEAR.get(ours.dtype, 0)
        if torch.allclose(ours, theirs, rtol=near, atol=near, equal_nan=True):
            return ""
        return values_differ(ours, theirs)
    if isinstance(theirs, (list, tuple)):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            found = gap(one, other)
            if found:
                return f"[{i}]: {found}"
        return ""
    return difference(ours, theirs)


# -- processes -------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts and failures of one job, or of a whole suite."""

    counts: collections.Counter = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Processor time."""

    def add(self, other):
        """Add the counts and failures of another, and show the failures."""
        self.counts.update(other.counts)
        self.failures += other.failures
        self.seconds += other.seconds
        for failure in other.failures:
            print(failure, flush=True)


def prepare():
    """Make a process quiet, single-threaded and comparable with the next one."""
    torch.set_num_threads(1)
    logging.getLogger("safemodule").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # `empty` and `resize_` hand out memory as it is, which cannot be compared: with this they fill
    # it. `warn_only`: an operator that has no deterministic form is called all the same.
    torch.use_deterministic_algorithms(True, warn_only=True)


def drawn(jobs, sample, seed):
    """Return a seeded choice of the jobs, or all of them, in an order that spreads the slow ones."""
    jobs = list(jobs)
    random.Random(seed).shuffle(jobs)
    return jobs if sample is None else jobs[:sample]


def timed(work, job):
    """Return the tally of one job, and the time that it took; an error is a failure."""
    started = time.process_time()
    try:
        tally = work(job)
    except Exception as error:
        tally = Tally(failures=[f"{job}: {error!r}"[:300]])
    tally.seconds = time.process_time() - started
    return tally


def run_jobs(work, jobs, processes=2):
    """Return the tally of `work(job)` over all jobs, in this process or in some."""
    total = Tally()
    if processes < 2 or len(jobs) < 2:
        for job in jobs:
            total.add(timed(work, job))
        return total
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=prepare
    ) as pool:
        futures = {pool.submit(timed, work, job): job for job in jobs}
        for future in concurrent.futures.as_completed(futures):
            try:
                total.add(future.result())
            except concurrent.futures.process.BrokenProcessPool as error:  # it crashed
                total.add(Tally(failures=[f"{futures[future]}: {error!r}"[:300]]))
    return total


def listed(make):
    """Return samples, none where the database has none of this kind."""
    try:
        return list(make())
    except (unittest.SkipTest, NotImplementedError):
        return []


def parser(description, jobs):
    """Return the parser of a suite's options."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--sample", type=int, help=f"how many {jobs} to draw (all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="names that begin so")
    parser.add_argument("--dtype", help="one dtype, such as float32")
    parser.add_argument("--processes", type=int, default=2)
    return parser


def closed(suite, total, started):
    """Print the line of one suite; returns the exit code."""
    counts = ", ".join(f"{name} {count}" for name, count in total.counts.items())
    failures = f", failures {len(total.failures)}" if total.failures else ""
    passed = time.monotonic() - started
    print(f"{suite}: {counts}{failures} ({passed:.0f} s, {total.seconds:.0f} s of processor)")
    return 1 if total.failures else 0

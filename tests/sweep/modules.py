"""Every stock module of PyTorch, guarded and plain.

Each input of PyTorch's module database, and of a table of our own for the modules that it lacks, is
given to the module as it is and to guarded ones: a class made with `SafeModule` as a mixin, one
whose ``forward`` is decorated, and one under `guard` with all its submodules. In training, in evaluation and without gradients; in-place activations
too. Outputs, gradients of inputs and parameters, and buffers must be equal, inputs untouched, and
the record must name what the plain module writes into clones.

Attention and the transformer layers ask whether an argument is of a tensor subclass, and leave their
fused inference path then. So it is off for the plain modules too: without it they are equal bit for
bit, with it up to rounding, and up to what the fused encoder does with padded places (it sets 0).

    python -m tests.sweep modules [--sample N] [--seed S]
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence
from torch.testing._internal.common_modules import module_db

from safemodule import SafeModule, freeze_inputs, guard, record
from tests.sweep import common

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
MODES = ("train", "eval", "no_grad")


# -- cases -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One module and what it is called with."""

    kind: type
    made_with: tuple = ()
    made_with_named: dict = field(default_factory=dict)
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    label: str = ""

    def make(self, kind, dtype):
        """Return a module, the same numbers each time."""
        torch.manual_seed(0)
        return kind(*self.made_with, **self.made_with_named).to(dtype)


def from_database(info, dtype, *, training):
    """Yield the database's cases of one module, each with ``inplace=True`` where that exists."""
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for i, item in enumerate(made):
        if item.forward_input is None:
            continue
        case = Case(
            info.module_cls,
            item.constructor_input.args,
            item.constructor_input.kwargs,
            item.forward_input.args,
            item.forward_input.kwargs,
            f"#{i}",
        )
        yield from with_inplace(case)


def with_inplace(case):
    """Yield a case, and its in-place variant if the module has one."""
    yield case
    if "inplace" in inspect.signature(case.kind.__init__).parameters:
        named = {**case.made_with_named, "inplace": True}
        yield Case(
            case.kind, case.made_with, named, case.args, case.kwargs, f"{case.label} inplace"
        )


def ours(dtype):
    """Yield cases of the modules that the database lacks, and of ways to call that it lacks."""

    def x(*shape):
        return torch.randn(shape, dtype=dtype).requires_grad_()

    def index(high, *shape):
        return torch.randint(high, shape)

    yield from recurrent(x)
    yield from attention(x)
    for kind in (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout):
        yield from with_inplace(Case(kind, (0.5,), {}, (x(4, 3),)))
        yield from with_inplace(Case(kind, (0.0,), {}, (x(4, 3),)))
    for kind, shape in ((nn.Dropout1d, (2, 3, 4)), (nn.Dropout2d, (2, 3, 4, 4))):
        yield from with_inplace(Case(kind, (0.5,), {}, (x(*shape),)))
        yield from with_inplace(Case(kind, (0.5,), {}, (x(*shape[1:]),)))
    yield from with_inplace(Case(nn.Dropout3d, (0.5,), {}, (x(2, 3, 2, 2, 2),)))
    yield from with_inplace(Case(nn.Hardsigmoid, (), {}, (x(4, 3),)))
    yield from with_inplace(Case(nn.RReLU, (), {}, (x(4, 3),)))
    yield Case(nn.Identity, (), {}, (x(3),))
    yield Case(nn.AdaptiveLogSoftmaxWithLoss, (8, 10, [3, 6]), {}, (x(5, 8), index(10, 5)))
    yield Case(nn.ChannelShuffle, (2,), {}, (x(1, 4, 2, 2),))
    yield Case(nn.CosineSimilarity, (), {}, (x(3, 4), x(3, 4)))
    yield Case(nn.CrossMapLRN2d, (3,), {}, (x(1, 4, 3, 3),))
    yield Case(nn.EmbeddingBag, (10, 3), {}, (index(10, 8), torch.tensor([0, 3])))
    yield Case(nn.EmbeddingBag, (10, 3), {"max_norm": 0.5}, (index(10, 2, 4),))
    yield Case(nn.Embedding, (10, 3), {"max_norm": 0.5}, (index(10, 2, 4),))
    yield Case(nn.Flatten, (), {}, (x(2, 3, 4),))
    yield Case(nn.Unflatten, (1, (2, 2)), {}, (x(3, 4),))
    yield Case(nn.Fold, ((4, 5), (2, 2)), {}, (x(1, 12, 12),))
    yield Case(nn.Unfold, ((2, 2),), {}, (x(1, 3, 4, 5),))
    yield Case(nn.LazyLinear, (4,), {}, (x(2, 3),))
    for dims, kinds in enumerate(
        (
            (nn.LazyBatchNorm1d, nn.LazyInstanceNorm1d),
            (nn.LazyBatchNorm2d, nn.LazyInstanceNorm2d),
            (nn.LazyBatchNorm3d, nn.LazyInstanceNorm3d),
        ),
        start=1,
    ):
        for kind in kinds:
            yield Case(kind, (), {}, (x(4, 3, *([4] * dims)),))
        pool = (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)[dims - 1]
        places = torch.arange(2**dims).mul(2).view(1, 1, *([2] * dims))
        yield Case(pool, (2,), {}, (x(1, 1, *([2] * dims)), places))
    yield Case(nn.NLLLoss2d, (), {}, (x(2, 3, 4, 4), index(3, 2, 4, 4)))
    yield Case(nn.PairwiseDistance, (), {}, (x(3, 4), x(3, 4)))
    yield Case(nn.PixelShuffle, (2,), {}, (x(1, 4, 2, 2),))
    yield Case(nn.PixelUnshuffle, (2,), {}, (x(1, 1, 4, 4),))
    for kind in (nn.TripletMarginLoss, nn.TripletMarginWithDistanceLoss):
        yield Case(kind, (), {}, (x(3, 4), x(3, 4), x(3, 4)))
    yield Case(nn.Upsample, (), {"scale_factor": 2}, (x(1, 2, 3, 3),))
    yield Case(nn.UpsamplingBilinear2d, (), {"scale_factor": 2}, (x(1, 2, 3, 3),))
    yield Case(nn.UpsamplingNearest2d, (), {"scale_factor": 2}, (x(1, 2, 3, 3),))
    # A chain whose first step writes its input, and whose views are written.
    yield Case(nn.Sequential, (nn.ReLU(inplace=True), nn.Tanh()), {}, (x(3, 4),))
    yield Case(nn.Sequential, (nn.Flatten(), nn.ReLU(inplace=True)), {}, (x(2, 3, 4),))
    yield Case(nn.Sequential, (nn.Identity(), nn.Hardtanh(inplace=True)), {}, (x(2, 3, 4),))
    yield Case(nn.TransformerDecoder, (_decoder_layer(), 2), {}, (x(3, 2, 4), x(5, 2, 4)))


def recurrent(x):
    """Yield recurrent modules with and without states, on padded and on packed sequences."""
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        for named in ({}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}):
            layers = named.get("num_layers", 1) * (2 if named.get("bidirectional") else 1)
            state = x(layers, 3, 5)
            states = (state, x(layers, 3, 5)) if kind is nn.LSTM else state
            same = (state, state) if kind is nn.LSTM else state
            sequence = x(3, 3, 4)
            for given in ((), (states,), (same,)):
                yield Case(kind, (4, 5), named, (sequence, *given), label=f"{named}")
            padded = pack_padded_sequence(x(4, 3, 4), torch.tensor([4, 3, 1]))
            ragged = pack_sequence([x(2, 4), x(4, 4), x(1, 4)], enforce_sorted=False)
            for packed in (padded, ragged):
                for given in ((), (states,)):
                    yield Case(kind, (4, 5), named, (packed, *given), label=f"packed {named}")
    for kind in (nn.RNNCell, nn.GRUCell):
        yield Case(kind, (4, 5), {}, (x(3, 4), x(3, 5)))
    state = x(3, 5)
    yield Case(nn.LSTMCell, (4, 5), {}, (x(3, 4), (state, state)))


def attention(x):
    """Yield attention whose query is its key, with masks, in every layout."""
    q = x(3, 2, 4)
    mask = torch.tensor([[0.0, -1e9, 0.0]] * 3, dtype=q.dtype)
    padding = torch.tensor([[False, False, True], [False, True, True]])
    for named in ({}, {"batch_first": True}, {"add_bias_kv": True}, {"dropout": 0.3}):
        make = (nn.MultiheadAttention, (4, 2), named)
        query = x(2, 3, 4) if named.get("batch_first") else q
        for kwargs in (
            {},
            {"need_weights": False},
            {"attn_mask": mask},
            {"key_padding_mask": padding},
        ):
            yield Case(*make, (query, query, query), kwargs, f"q is k is v {named}")
            yield Case(*make, (query, x(*query.shape), query), kwargs, f"q is v {named}")
    for named in ({}, {"batch_first": True}, {"norm_first": True}):
        yield Case(nn.TransformerEncoderLayer, (4, 2, 8), named, (q,), {}, f"{named}")
        yield Case(nn.TransformerDecoderLayer, (4, 2, 8), named, (q, q), {}, f"same {named}")
    yield Case(nn.Transformer, (4, 2, 1, 1, 8), {}, (q, q), {}, "source is target")


def _decoder_layer():
    return nn.TransformerDecoderLayer(4, 2, 8)


# -- guarded classes -------------------------------------------------------------------------------


@functools.cache
def guarded_kinds(kind):
    """Return {name: class} of the guarded forms of a class; `guard` is for modules as they are."""
    mixin = type(f"Safe{kind.__name__}", (SafeModule, kind), {})
    decorated = type(f"Frozen{kind.__name__}", (kind,), {"forward": freeze_inputs(kind.forward)})
    return {"mixin": mixin, "decorated": decorated, "guard": kind}


def named_arguments(kind, args, kwargs):
    """Return the arguments by the names that a record gives them."""
    signature = inspect.signature(kind.forward)
    bound = signature.bind(None, *args, **kwargs).arguments
    named = dict(list(bound.items())[1:])
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in named:
            named.update(named.pop(name))
    return named


# -- one case --------------------------------------------------------------------------------------


def run(module, case, args, kwargs, mode, leaves):
    """Return [outputs, state, gradients] of one call, up to an error."""
    module.train(mode == "train")
    torch.manual_seed(1)
    with torch.set_grad_enabled(mode != "no_grad"):
        out = common.attempt(lambda: module(*args, **kwargs))
    state = {
        name: value
        for name, value in module.state_dict(keep_vars=True).items()
        if not isinstance(value, nn.parameter.UninitializedTensorMixin)
    }
    found = [out, {name: value.detach() for name, value in state.items()}]
    if mode == "no_grad" or isinstance(out, common.Raised):
        return found
    outputs = [x for _, x in common.walk(out)]
    parameters = [value for value in state.values() if value.requires_grad]
    return [*found, common.attempt(common.derivatives, outputs, [*leaves, *parameters], 2, False)]


class Checker:
    """Runs cases guarded and plain and compares."""

    def __init__(self):
        self.tally = common.Tally()
        self.where = ""

    def check(self, case, mode, dtype):
        """Compare one case in one mode, for each way to guard."""
        named = named_arguments(case.kind, case.args, case.kwargs)
        inputs = common.inputs_of(named)
        leaves = [x for x in inputs.values() if x.requires_grad]
        plain, written = self.plain(case, mode, dtype, leaves)
        pictures = {path: common.Picture(x) for path, x in inputs.items()}
        for name, kind in guarded_kinds(case.kind).items():
            module = case.make(kind, dtype)
            block = guard(module) if name == "guard" else contextlib.nullcontext()
            with block, record() as log:
                guarded = run(module, case, case.args, case.kwargs, mode, leaves)
            faults = [
                f"{what}: {found}"
                for what, one, other in zip(
                    ("outputs", "state", "gradients"), guarded, plain, strict=False
                )
                if (
                    found := common.gap(one, other)
                    if what == "gradients"
                    else common.difference(one, other)
                )
            ]
            faults += [
                f"the caller's {path}: {changes}"
                for path, picture in pictures.items()
                if (changes := picture.changes())
            ]
            recorded = {m.argument for m in log}
            # Under `guard` each submodule has inputs of its own, under its own names.
            if bool(recorded) < bool(written) if name == "guard" else recorded != written:
                faults.append(f"recorded {sorted(recorded)}, written {sorted(written)}")
            self.tally.counts["calls"] += 1
            self.tally.counts["equal"] += not faults
            self.tally.failures += [f"{self.where} {name} {mode}: {fault}" for fault in faults]

    def plain(self, case, mode, dtype, leaves):
        """Return what the plain module gives, and the names of the inputs that it writes."""
        args, kwargs = common.rebuilt((case.args, case.kwargs), torch.Tensor.clone)
        clones = common.inputs_of(named_arguments(case.kind, args, kwargs))
        pictures = {path: common.Picture(x) for path, x in clones.items()}
        result = run(case.make(case.kind, dtype), case, args, kwargs, mode, leaves)
        written = {path for path, picture in pictures.items() if picture.changes()}
        if not written:
            # Unwritten inputs keep the strides that a clone may not have.
            result = run(case.make(case.kind, dtype), case, case.args, case.kwargs, mode, leaves)
        return result, written


def sweep(job):
    """Check one module of the database, or all of our own cases, in one dtype; returns a tally."""
    index, dtype = job
    checker = Checker()
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for mode in MODES:
            torch.manual_seed(0)
            if index < 0:
                cases = ours(dtype)
            else:
                cases = from_database(module_db[index], dtype, training=mode == "train")
            for case in cases:
                checker.where = f"{case.kind.__name__} {dtype} {case.label}"
                checker.check(case, mode, dtype)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return checker.tally


def main(argv=None):
    """Run the sweep, print one line, and return the exit code."""
    parser = common.parser(__doc__, "pairs of module and dtype")
    options = parser.parse_args(argv)
    started = time.monotonic()
    common.prepare()
    jobs = [
        (index, dtype)
        for index, info in enumerate(module_db)
        for dtype in DTYPES
        if dtype in info.supported_dtypes("cpu")
        and info.module_cls.__name__.startswith(options.only or "")
        and str(dtype).endswith(options.dtype or "")
    ]
    if not options.only:
        jobs += [(-1, torch.float32), (-1, torch.float64)]
    jobs = common.drawn(jobs, options.sample, options.seed)
    kinds = {module_db[index].module_cls for index, _ in jobs if index >= 0}
    if any(index < 0 for index, _ in jobs):
        kinds |= {case.kind for case in ours(torch.float32)}
    total = common.run_jobs(sweep, jobs, options.processes)
    total.counts = {"modules": len(kinds), **total.counts}
    return common.closed("modules", total, started)


if __name__ == "__main__":
    sys.exit(main())

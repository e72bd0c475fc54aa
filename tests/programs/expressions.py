"""Expressions of random programs: views of a tensor, reads, and values to write."""

from __future__ import annotations

import torch


def dims(w, x):
    """Return a dimension of `x`."""
    return w.pick(x.ndim)


# -- views: each gets the writer, the expression of a tensor and its stand-in ----------------------


def _int(w, n, x):
    at = ":, " * dims(w, x)
    size = x.shape[at.count(":")]
    return f"{n}[{at}{w.one(('i',) if 0 < w.loop <= size else ('0', str(size - 1), '-1'))}]"


def _slice(w, n, x):
    d = dims(w, x)
    size = x.shape[d]
    if size < 2:
        return f"{n}[:]"
    cut = w.one((":1", "1:", "::2", f":{size - 1}", "-1:", ":"))
    return f"{n}[{':, ' * d}{cut}]"


def _mixed(w, n, x):
    return n + w.one(("[..., 0]", "[None]", "[:, None]", "[..., None, :]", "[0, ..., :1]", "[...]"))


def _order(w, n, x):
    ways = [
        ".T" if x.ndim == 2 else ".mT",
        ".transpose(0, -1)",
        ".movedim(0, -1)",
        ".swapaxes(0, -1)",
    ]
    ways.append(f".permute({', '.join(map(str, range(x.ndim)[::-1]))})")
    if x.ndim <= 2:
        ways.append(".t()")
    return n + w.one(ways)


def _shape(w, n, x):
    size = x.numel()
    ways = [
        ".view(-1)",
        ".reshape(-1)",
        ".flatten()",
        ".ravel()",
        f".view({size}, 1)",
        ".view_as({n})",
    ]
    if size % 2 == 0:
        ways += [".view(2, -1)", ".reshape(-1, 2)", ".reshape(2, -1)", ".unflatten(-1, (2, -1))"]
    if size % 3 == 0:
        ways += [".view(3, -1)", ".reshape(-1, 3)"]
    return n + w.one(ways).format(n=n)


def _axes(w, n, x):
    d = dims(w, x) if x.ndim else 0
    return n + w.one((f".unsqueeze({d})", ".unsqueeze(-1)", ".squeeze()", f".squeeze({d})"))


def _expand(w, n, x):
    return n + w.one(
        (f".expand(2, {', '.join(map(str, (*x.shape, '')))}".rstrip(", ") + ")", ".expand(3, -1)")
    )


def _part(w, n, x):
    d = dims(w, x)
    size = x.shape[d]
    return n + w.one(
        (
            f".narrow({d}, {size - 1}, 1)",
            f".select({d}, {size - 1})",
            f".narrow({d}, 0, {max(1, size - 1)})",
            f".unfold({d}, {min(2, size)}, 1)",
            f".diagonal(0, {d}, -1)",
            ".diagonal()",
        )
    )


def _one_of_many(w, n, x):
    d = dims(w, x)
    return w.one(
        (
            f"{n}.unbind({d})[-1]",
            f"{n}.chunk(2, {d})[0]",
            f"{n}.split(1, {d})[-1]",
            f"torch.tensor_split({n}, 2)[0]",
            f"list({n})[0]",
        )
    )


def _detached(w, n, x):
    leaf = (".detach().requires_grad_()",) if x.dtype == torch.float64 else ()
    return n + w.one((".detach()", ".data", ".detach()[...]", ".data[...]", *leaf))


def _strided(w, n, x):
    size = x.numel()
    some = max(1, size // 2)
    return n + w.one(
        (
            f".as_strided(({some},), (1,))",
            f".as_strided(({some},), (2,))",
            f".as_strided(({some},), (1,), 1)",
            f".as_strided((2, {some}), (1, 1), 0)",
            f".as_strided((2, {some}), ({some}, 1), 0)",
        )
    )


def _bits(w, n, x):
    if x.dtype == torch.int64:
        return f"{n}.view(torch.float64)"
    return f"{n}.view(torch.int64)"


def _complex(w, n, x):
    if x.dtype.is_complex:
        return w.one(
            (f"torch.view_as_real({n})", f"{n}.real", f"{n}.imag", f"{n}.conj()", f"{n}.mH")
        )
    return w.one((f"torch.view_as_complex({n})", f"torch.view_as_complex({n}.view(-1, 2))"))


def _at_tensor(w, n, x):
    scalars = [m for m, k in w.tensors() if k.dtype == torch.int64 and k.ndim == 0]
    return f"{n}[{w.one(scalars)}]" if scalars else _int(w, n, x)


def _core(w, n, x):
    return w.one(("torch.ops.aten.select.int({n}, 0, 0)", "torch.ops.aten.unsqueeze({n}, 0)",
        "torch.ops.aten.slice({n}, 0, 0, 1)", "torch.transpose({n}, 0, -1)",
        "torch.narrow({n}, 0, 0, 1)", "torch.select({n}, -1, 0)",
        "torch.ops.aten.alias({n})")).format(n=n)  # fmt: skip


def _from_tensor(w, n, x):
    scalars = [m for m, k in w.tensors() if k.dtype == torch.int64 and k.ndim == 0]
    if not scalars:
        return _slice(w, n, x)
    return w.one(("{n}[{k}:]", "{n}[:{k}]", "{n}.narrow(0, {k}, 1)")).format(n=n, k=w.one(scalars))


def _same(w, n, x):
    return n + w.one(
        (".contiguous()", ".view_as({n})", ".expand_as({n})", ".reshape({n}.shape)")
    ).format(n=n)


_ANY = (_mixed, _shape, _axes, _expand, _strided, _same, _detached)
_WITH_DIMS = (
    _int,
    _slice,
    _order,
    _int,
    _slice,
    _part,
    _one_of_many,
    _at_tensor,
    _core,
    _from_tensor,
)


def view(w, n, x):
    """Return an expression that is a view of a tensor, most of the time."""
    if w.loop and x.ndim and x.shape[0] >= w.loop and w.chance(2):
        return f"{n}[{w.one(('i', 'i', 'i - 1', 'i:'))}]"
    if x.dtype.is_complex and w.chance(2):
        return _complex(w, n, x)
    if w.chance(16):
        return (_bits if w.chance(3) else _complex)(w, n, x)
    return w.one(_WITH_DIMS + _ANY if x.ndim else _ANY)(w, n, x)


# -- values ----------------------------------------------------------------------------------------


def fits(shape, into):
    """Tell whether a shape broadcasts to another."""
    return len(shape) <= len(into) and all(
        a in (1, b) for a, b in zip(shape[::-1], into[::-1], strict=False)
    )


def value(w, x):
    """Return an expression of something to write to, or to combine with, `x`."""
    if x.dtype == torch.bool:
        masks = [n for n, y in w.tensors() if y.dtype == torch.bool and fits(y.shape, x.shape)]
        return w.one(("True", "False", *(f"~{n}" for n in masks), *masks))
    if x.dtype == torch.int64:
        return w.one(("1", "0"))
    some = [n for n, y in w.tensors() if fits(y.shape, x.shape) and y.dtype == x.dtype]
    if not some or w.chance(3):
        if x.dtype.is_complex:
            return w.one(("0.5", "1j"))
        return w.one(("0.5", "p", "q" if fits((3,), x.shape) else "p", "-1.5"))
    n = w.one(some)
    return w.one((f"{n} * p", n, n, f"{n}.tanh()", f"{n}.detach()", f"{n}.clone()", f"{n} * {n}"))


def masks_of(w, x):
    """Return the names of the masks that fit `x`."""
    return [
        n
        for n, m in w.tensors()
        if m.dtype == torch.bool and m.shape == x.shape[: m.ndim] and m.ndim
    ]


def indices(w):
    """Return the names of the index tensors."""
    return [n for n, k in w.tensors() if k.dtype == torch.int64 and k.ndim == 1]


_UNARY = (
    "{n} * p", "{n} * {n}", "{n}.tanh()", "{n}.sin() * {n}", "{n}.sigmoid()", "{n} + p", "-{n}",
    "{n}.pow(3)", "{n}.clone()", "{n}.relu()", "(0.3 * {n}).clamp(-3, 3).exp()",
)  # fmt: skip
_CUSTOM = (
    "product({n}, p)", "product({n}, {n})", "reverse({n})", "reverse({n}).tanh()",
    "slope(lambda y: (y * y * p).sum(), {n})", "slope(lambda y: y.tanh().sum(), {n} * p)",
    "checkpointed(lambda y: y.tanh() * p, {n})", "checkpointed(lambda y: y * y, {n})",
)  # fmt: skip
_WITH_AXIS = (
    "{n}.softmax(-1)", "{n}.cumsum(0)", "{n}.logsumexp(-1)", "{n}.prod(0)", "{n}.amax(0)",
    "{n}.mean(0)", "torch.cat([{n}, {n}])", "torch.stack([{n}, {n} * p])", "{n}.flip(0)",
    "{n}.norm(dim=0)", "{n}.roll(1, 0)", "F.normalize({n}, dim=0)", "{n}.cumprod(-1)",
    "{n}.sort(0).values", "F.layer_norm({n}, {n}.shape[-1:])",
)  # fmt: skip


def read(w, n, x):
    """Return a differentiable expression of a tensor; it shares no memory with it."""
    if x.dtype.is_complex:
        return w.one(("{n} * {n}", "torch.view_as_real({n}) * p", "{n}.abs()", "{n} * p")).format(
            n=n
        )
    if x.dtype != torch.float64:
        return w.one(("({n}) * p", "torch.where({n} > 0, p, 0.5)")).format(n=n)
    ways = [*_UNARY]
    if x.ndim:
        ways += _WITH_AXIS
        ways += [f"{{n}}[{m}] * p" for m in masks_of(w, x)]
        ways += [f"{{n}}.index_select(0, {m})" for m in indices(w)]
        ways += ["{n} @ q"] * (x.shape[-1] == 3)
        ways += ["{n} @ {n}.mT", "F.linear({n}, {n})"] * (x.ndim == 2)
    others = [m for m, y in w.tensors() if y.dtype == torch.float64 and fits(y.shape, x.shape)]
    ways += [f"{{n}} * {m}" for m in others[-3:]]
    ways += [f"torch.where({m}, {{n}}, p)" for m in masks_of(w, x) if x.ndim == w.value(m).ndim]
    if w.chance(6):
        return w.one(_CUSTOM).format(n=n)
    return w.one(ways).format(n=n)

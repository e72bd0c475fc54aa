"""Statements of random programs that write a tensor."""

from __future__ import annotations

import torch

from tests.programs.expressions import indices, masks_of, value
from tests.programs.reference import Ref, value_of

_UNARY = (
    "tanh_", "sin_", "sigmoid_", "relu_", "neg_", "square_", "zero_", "erf_", "abs_", "atan_",
    "cos_", "sign_", "nan_to_num_", "round_", "frac_", "expm1_", "sinc_", "deg2rad_",
)  # fmt: skip


def write(w, n, x):
    """Return a statement that writes the tensor that an expression stands for."""
    if x.dtype == torch.bool:
        return _bool(w, n, x)
    if x.dtype == torch.int64:
        return _int(w, n, x)
    if x.dtype.is_complex:
        return _complex(w, n, x)
    kinds = (_arithmetic, _unary, _setitem, _more, _functional, _foreach, _out, _core)
    return w.one(kinds)(w, n, x)


def _arithmetic(w, n, x):
    v = value(w, x)
    ways = [f"{n}.add_({v})", f"{n}.mul_({v})", f"{n}.sub_({v})", f"{n}.add_({v}, alpha=2)"]
    ways.append(f"{n}.copy_({v})" if not _number(v) else f"{n}.fill_({v})")
    if _assignable(n):
        ways += [f"{n} += {v}", f"{n} *= {v}", f"{n} -= {v}"]
    ways += [f"{n}.div_(2.0 + ({v}) ** 2)", f"torch.Tensor.add_({n}, {v})"]
    return w.one(ways)


def _number(text):
    return text.lstrip("-").replace(".", "").isdigit()


def _assignable(n):
    return n.isidentifier() or n.endswith("]")


def _unary(w, n, x):
    ways = [f"{n}.{f}()" for f in _UNARY]
    numbers = value_of(x).detach()
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0, 0)
    if high < 3:
        ways += [f"{n}.exp_()", f"torch.exp_({n})"]
    if low > 0.01:
        ways += [f"{n}.sqrt_()", f"{n}.log_()", f"{n}.rsqrt_()", f"{n}.reciprocal_()"]
    return w.one((*ways, f"torch.tanh_({n})", f"torch.relu_({n})", f"torch.neg_({n})"))


def _setitem(w, n, x):
    if not x.ndim:
        return f"{n}[...] = {value(w, x)}"
    keys = ["0", "-1", "...", ":", "None", "::2", "1:", "..., 0", "0, ..., :1", "[0]", "[0, -1]"]
    keys += ["torch.tensor([0])", "slice(1)", "[True] + [False] * ({n}.shape[0] - 1)"]
    if w.loop and x.shape[0] >= w.loop:
        keys += ["i"] * 6
    if x.ndim > 1:
        keys += [
            ":, 0",
            "0, 0",
            ":, None, -1",
            "..., [0]",
            "[0], 1:",
            "0, [0, -1]",
            "torch.tensor([[0]]), 1",
        ]
    keys += masks_of(w, x) * 2 + indices(w) * 2
    keys += [f"{n} > 0", f"{n}.detach() < 0.2"] * (x.dtype == torch.float64)
    scalars = [m for m, k in w.tensors() if k.dtype == torch.int64 and k.ndim == 0]
    key = w.one(keys + scalars).format(n=n)
    part = w.evaluated(f"{n}[{key}]")
    if part is None:
        return None
    v = value(w, part)
    if w.chance(4) and not isinstance(part, Ref):
        return f"{n}[{key}] *= p"
    return f"{n}[{key}] {w.one(('=', '=', '+=', '*='))} {v}"


def _more(w, n, x):
    v = value(w, x)
    masks = [m for m, y in w.tensors() if y.dtype == torch.bool and y.shape == x.shape]
    ways = [
        f"{n}.addcmul_({n}, {_tensor(v)})", f"{n}.lerp_({_tensor(v)}, 0.25)", f"{n}.pow_(2)",
        f"{n}.clamp_(-0.5, 0.5)", f"{n}.clamp_min_(0.1)", f"{n}.hypot_({_tensor(v)})",
        f"{n}.masked_fill_({n} > 0, {v if _number(v) else 'p'})", f"{n}.fill_(p)",
        f"{n}.addcdiv_({n}, 2.0 + {n} ** 2)", f"{n}.atan2_(2.0 + {_tensor(v)} ** 2)",
        f"{n}.copy_({n} * p)", f"{n}.copy_(p)",
    ]  # fmt: skip
    for m in masks:
        ways += [f"{n}.masked_fill_({m}, p)", f"{n}.masked_fill_(~{m}, 0.5)"]
        ways += [f"{n}.masked_scatter_({m}, {n}.tanh())", f"{n}.masked_fill_(mask={m}, value=1.5)"]
    if x.ndim:
        ways += [f"{n}.cumsum_(0)", f"{n}.cumprod_(-1)", f"{n}.renorm_(2, 0, 0.7)"]
        ways += [
            f"{n}.index_fill_(0, torch.tensor([0]), p)",
            f"{n}.put_(torch.tensor([0]), p.view(1))",
        ]
        for m in indices(w):
            ways += [
                f"{n}.index_add_(0, {m}, {n}[{m}] * p)", f"{n}.index_fill_(0, {m}, 0.5)",
                f"{n}.index_put_(({m},), p)", f"{n}.index_put_(({m},), p, accumulate=True)",
                f"{n}.index_copy_(0, {m}, {n}[{m}] * 2)", f"{n}.put_({m}, q[:2], accumulate=True)",
            ]  # fmt: skip
        zero = f"torch.zeros({', '.join('1' * x.ndim)}, dtype=torch.int64)"
        ways += [
            f"{n}.scatter_(0, {zero}, 0.5)",
            f"{n}.scatter_add_(0, {zero}, p.expand({', '.join('1' * x.ndim)}))",
        ]
        ways += [f"{n}.scatter_(-1, {zero}, p.expand({', '.join('1' * x.ndim)}))"]
        ways += [f"{n}.scatter_reduce_(0, {zero}, p.expand({', '.join('1' * x.ndim)}), 'amax')"]
    if x.ndim == 2:
        ways += [f"{n}.tril_()", f"{n}.triu_(1)", f"{n}.fill_diagonal_(0.5)"]
        ways += [f"{n}.addr_({n}[:, 0] * p, {n}[0].tanh())"]
        ways += [f"{n}.addmm_({n}.tanh(), {n}.t() @ {n})"]
    return w.one(ways)


def _tensor(v):
    return f"torch.tensor({v}, dtype=torch.float64)" if _number(v) else f"({v})"


def _functional(w, n, x):
    return w.one(
        (
            "F.relu({n}, inplace=True)", "F.leaky_relu({n}, 0.2, inplace=True)",
            "F.leaky_relu({n}, 0.2, True)", "F.elu({n}, inplace=True)", "F.silu({n}, inplace=True)",
            "F.hardtanh({n}, inplace=True)", "F.celu({n}, inplace=True)", "F.relu_({n})",
            "F.threshold({n}, 0.1, 0.5, inplace=True)", "F.selu({n}, inplace=True)",
            "F.mish({n}, inplace=True)", "F.hardswish({n}, inplace=True)", "torch.selu_({n})",
            "F.relu6({n}, inplace=True)", "torch.nn.ReLU(inplace=True)({n})",
            "F.dropout({n}, 0.0, True, True)", "F.elu_({n})", "torch.celu_({n})",
        )
    ).format(n=n)  # fmt: skip


def _foreach(w, n, x):
    v = value(w, x)
    others = [
        m for m, y in w.tensors()
        if isinstance(y, Ref) and y.protected and y.dtype == torch.float64
        and isinstance(x, Ref) and y.memory is not x.memory
    ]  # fmt: skip
    both = f"[{n}, {w.one(others)}]" if others and w.chance(2) else f"[{n}]"
    copies = (
        []
        if torch.is_grad_enabled()
        else [f"torch._foreach_copy_([{n}], [({_tensor(v)}).expand({n}.shape)])"]
    )
    return w.one(
        (
            *copies,
            f"torch._foreach_add_({both}, 0.5)", f"torch._foreach_mul_({both}, -1.5)",
            f"torch._foreach_tanh_({both})", f"torch._foreach_neg_({both})",
            f"torch._foreach_mul_([{n}], [{_tensor(v)}])", f"torch._foreach_sigmoid_({both})",
            f"torch._foreach_add_([{n}], [{_tensor(v)}], alpha=2)", f"torch._foreach_zero_({both})",
            f"torch._foreach_addcmul_([{n}], [{n} * 1], [{n}.tanh()])",
            f"torch._foreach_lerp_([{n}], [{n}.tanh()], 0.5)",
        )
    )  # fmt: skip


def _out(w, n, x):
    v = _tensor(value(w, x))
    ways = [
        f"torch.add({n}, {v}, out={n})", f"torch.tanh({n}, out={n})", f"torch.mul({v}, 2.0, out={n})",
        f"torch.neg({n}, out={n})", f"torch.where({n} > 0, {n} * 2, {n}, out={n})",
        f"torch.clamp({n}, -0.5, 0.5, out={n})", f"torch.sub({n}, {v}, out={n})",
    ]  # fmt: skip
    if x.ndim:
        ways += [f"torch.cumsum({n} * 1, 0, out={n})", f"torch.stack([*({n} * 2)], out={n})"]
    return w.one(ways)


def _core(w, n, x):
    v = _tensor(value(w, x))
    ways = [
        f"torch.ops.aten.add_.Tensor({n}, {v})", f"torch.ops.aten.mul_({n}, 1.5)",
        f"torch.ops.aten.tanh_({n})", f"torch.ops.aten.copy_({n}, {v})", f"double_({n})",
        f"torch.nn.init.constant_({n}, 0.3)", f"torch.nn.Tanh()({n}.tanh_())",
    ]  # fmt: skip
    if x.ndim == 2:
        stats = [m for m, y in w.tensors() if _is_statistic(x, y)]
        if stats:
            ways += [f"F.batch_norm({n}, {w.one(stats)}, {w.one(stats)}, training=True)"] * 3
    return w.one(ways)


def _is_statistic(x, y):
    return (
        isinstance(y, Ref) and y.protected and y.dtype == torch.float64
        and y.shape == x.shape[1:] and x.shape[0] > 1 and not y.read().requires_grad
    )  # fmt: skip


def _bool(w, n, x):
    v = value(w, x)
    ways = [f"{n}.fill_({v})" if v in ("True", "False") else f"{n}.copy_({v})"]
    ways += [f"{n}[...] = {v}", f"{n}.logical_not_()", f"{n}.zero_()"]
    if v not in ("True", "False"):
        ways += [f"{n}.logical_and_({v})", f"{n}.logical_or_({v})"]
        ways += [f"torch.logical_xor({n}, {v}, out={n})"]
    if _assignable(n):
        ways += [f"{n} |= {v}", f"{n} &= {v}", f"{n} ^= {v}"]
    if x.ndim:
        ways += [f"{n}[0] = {w.one(('True', 'False'))}", f"{n}[..., -1] = False"]
        ways += [f"{n}[i] = True"] * (0 < w.loop <= x.shape[0])
    return w.one(ways)


def _int(w, n, x):
    ways = [f"{n}.sub_(1)", f"{n}.add_(1)", f"{n}.zero_()", f"{n}[...] = 0", f"{n}.fill_(1)"]
    ways += [f"{n}.bitwise_xor_(1)", f"{n}.clamp_(0, 1)", f"torch.neg({n}, out={n})"]
    ways += [f"{n} += 1", f"{n} %= 2", f"{n} -= 1"] * _assignable(n)
    ways += [f"{n}[0] = 1", f"{n}[-1] -= 1"] * bool(x.ndim)
    return w.one(ways)


def _complex(w, n, x):
    v = value(w, x)
    ways = [
        f"{n}.mul_(1j)",
        f"{n}.add_({v})",
        f"{n}.mul_({v})",
        f"{n}.conj_physical_()",
        f"{n}.sin_()",
    ]
    ways += [
        f"{n}.real.mul_(2.0)",
        f"{n}.imag.add_(p)",
        f"{n}.real = 0.5 * {n}.imag",
        f"{n}.tanh_()",
    ]
    ways += [f"{n}.imag = torch.tensor(0.5, dtype=torch.float64)"]
    ways += [
        f"torch.view_as_real({n}).mul_({w.one(('p', '0.5'))})",
        f"{n}[...] = {v}",
        f"{n}.zero_()",
    ]
    return w.one(ways)

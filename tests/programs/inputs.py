"""The inputs of a random program: tensors of several layouts, with and without gradients."""

from __future__ import annotations

SHAPES = ((3,), (2, 3), (3, 3), (2, 2), (2, 2, 2), (), (4,), (2, 1, 3), (3, 2), (6,))


def write(w):
    """Return the source of the inputs, and the parameters of forward by name.

    Args:
        w: What makes the choices: see `Writer`.
    """
    lines, names, leaves = [], [], ["p", "q"]
    for name in "abc"[: 1 + w.one((0, 1, 1, 2))]:
        if names and w.chance(6):
            other = w.one(names)
            lines.append(f"{name} = {w.one((other, f'{other}[...]', f'{other}.view_as({other})'))}")
        else:
            _tensor(w, name, lines, leaves)
        names.append(name)
    if w.chance(6):
        real = w.chance(3)
        grad = "" if real else ".requires_grad_()"
        lines.append(f"z = torch.view_as_complex(data(3, 2, seed=9)){grad}")
        names.append("z")
        leaves += [] if real else ["z"]
    if w.chance(2):
        lines.append(f"m = data(*{w.one(names)}.shape, seed=3) > 0")
        names.append("m")
    if w.chance(2):
        lines.append(f"k = torch.tensor({w.pick(2)})")
        names.append("k")
    if w.chance(3):
        lines.append(f"j = torch.tensor([1, {w.pick(2)}])")
        names.append("j")
    if w.chance(4):
        lines.append(_container(w, names))
    lines += [
        "p = (data(seed=5) + 0.5).requires_grad_()",
        "q = data(3, seed=6).requires_grad_()",
        f"args = ({', '.join(names)},)",
        f"leaves = [{', '.join(leaves)}]",
    ]
    return "\n".join(lines) + "\n", names


def _tensor(w, name, lines, leaves):
    shape = w.one(SHAPES)
    seed = len(lines)
    layout = w.one(_LAYOUTS) if w.chance(2) else _contiguous
    before, after = layout(shape)
    made = f"data({before}seed={seed})"
    kind = w.pick(4)
    if kind == 0:
        lines.append(f"{name} = {made}{after}.requires_grad_()")
        leaves.append(name)
    elif kind == 1:
        lines.append(f"{name} = {made}{after}")
    else:
        lines.append(f"{name}0 = {made}.requires_grad_()")
        lines.append(f"{name} = {('', '(')[kind - 2]}{name}0{('', ' * 1.5)')[kind - 2]}{after}")
        leaves.append(f"{name}0")


def _sizes(shape):
    return "".join(f"{n}, " for n in shape)


def _contiguous(shape):
    return _sizes(shape), ""


def _offset(shape):
    return _sizes((4, *shape)), "[2]"


def _gaps(shape):
    if not shape:
        return _sizes((3,)), "[1]"
    return _sizes((*shape[:-1], shape[-1] + 2)), "[..., 1:-1]"


def _transposed(shape):
    if len(shape) < 2:
        return _gaps(shape)
    return _sizes(shape[::-1]), f".permute({', '.join(map(str, range(len(shape))[::-1]))})"


def _steps(shape):
    if not shape:
        return _sizes((3,)), "[1]"
    return _sizes((shape[0] * 2, *shape[1:])), "[::2]"


def _expanded(shape):
    if not shape:
        return "", ""
    return _sizes((1, *shape[1:])), f".expand({_sizes(shape)[:-2]})"


def _last_expanded(shape):
    if not shape:
        return "", ""
    return _sizes((*shape[:-1], 1)), f".expand({_sizes(shape)[:-2]})"


_LAYOUTS = (_contiguous, _gaps, _offset, _transposed, _steps, _expanded, _last_expanded)


def _container(w, names):
    some = [w.one(names) for _ in range(2)]
    form = w.one(("{{'x': {0}}}", "{{'x': {0}, 'l': [{1}]}}", "[{0}, {1}]", "{{'x': ({0}, {1})}}"))
    names.append("d")
    return f"d = {form.format(*some)}"


def paths(value, name):
    """Return the expressions by which a program reaches the tensors of an input."""
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in paths(item, f"{name}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [p for i, item in enumerate(value) for p in paths(item, f"{name}[{i}]")]
    return [name]

"""The statements of random programs: each gets the `Writer` and returns the text it has run.

None is returned where none came about.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tests.programs import functions
from tests.programs.expressions import read, view
from tests.programs.memory import Undefined
from tests.programs.reference import Ref
from tests.programs.writes import write

_GLOBAL = ("torch", "F", "data", "freeze", "freeze_inputs", "SafeModule", "out", *functions.ALL)


def _read(w):
    n, x = w.some()
    if n is None:
        return None
    text = read(w, n, x)
    if w.chance(3) and not w.loop:
        name = w.name("r")
        text = w.plain(f"{name} = {text}")
        if text:
            w.expressions.append(name)
        return text
    y = w.evaluated(text)
    if not isinstance(y, Tensor):
        return None
    total = "torch.view_as_real({}).sum()" if y.dtype.is_complex else "({}).sum()"
    return w.plain(f"out = out + {total.format(text)}")


def _view(w):
    n, x = w.some()
    if n is None:
        return None
    text = view(w, n, x)
    if w.chance(5) and not w.loop and n.isidentifier() and n != "d":
        return w.plain(f"{n} = {text}")
    name = w.name()
    text = w.plain(f"{name} = {text}")
    if text:
        w.expressions.append(name)
    return text


def _views(w):
    n, x = w.some()
    if n is None or not x.ndim:
        return None
    d = w.pick(x.ndim)
    size = x.shape[d]
    text = w.one((f"{n}.split(1, {d})", f"{n}.unbind({d})", f"{n}.chunk({size}, {d})"))
    if size > 3:
        return None
    names = [w.name() for _ in range(size)]
    text = w.plain(f"{', '.join(names)}, = {text}")
    if text:
        w.expressions += names
    return text


def _write(w):
    n, x = w.some(protected=True)
    if n is None:
        return None
    for _ in range(w.pick(3)):
        part = view(w, n, x)
        y = w.evaluated(part)
        if not (isinstance(y, Ref) and y.protected and y.numel()):
            break
        n, x = part, y
    return w.plain(write(w, n, x))


def _no_grad(w):
    mode = w.one(("no_grad", "no_grad", "enable_grad"))
    with getattr(torch, mode)():
        lines = w.block(2)
    return _nest(f"with torch.{mode}():", lines)


def _nest(head, lines):
    return "\n".join([head, *(f"    {line}" for line in lines)]) if lines else None


def _loop(w):
    if w.loop:
        return None
    count = w.loop = 2 + w.pick(2)
    w.space["i"] = 0
    lines = w.block(3)
    w.loop = 0
    text = _nest(f"for i in range({count}):", lines)
    if text is None:
        return None
    for i in range(1, count):
        w.space["i"] = i
        if not w.execute("\n".join(lines)):
            w.restart()
            return None
    return text


def _metadata(w):
    n, x = w.some(protected=True)
    if n is None or w.loop:
        return None
    ways = [".unsqueeze_(0)", ".squeeze_()", ".unsqueeze_(-1)"]
    if x.ndim == 2:
        ways += [".t_()"] * 2
    if x.ndim > 1:
        ways += [".transpose_(0, -1)", ".swapaxes_(-1, 0)"]
    return w.plain(n + w.one(ways))


def _if(w):
    n, x = w.some()
    if n is None or x.dtype.is_complex:
        return None
    test = f"{n}.sum() > 0"
    if not w.evaluated(f"bool({test})"):
        test = f"{n}.sum() <= 0"
        if not w.evaluated(f"bool({test})"):
            return None
    return _nest(f"if {test}:", w.block(2))


def _rows(w):
    n, x = w.some(protected=True)
    if n is None or not x.ndim:
        return None
    ways = ["zero_()", "fill_(1)"]
    if x.dtype == torch.float64:
        ways += ["mul_(p)", "copy_(row.tanh())", "tanh_()", "add_(row)"]
    others = [m for m, y in w.tensors() if y.shape == x.shape and y.dtype == x.dtype]
    if others and x.dtype == torch.float64 and w.chance(3):
        way = w.one(("mul_", "copy_", "add_"))
        return w.plain(f"for row, other in zip({n}, {w.one(others)}):\n    row.{way}(other)")
    return w.plain(f"for row in {n}:\n    row.{w.one(ways)}")


def _data(w):
    names = [n for n in w.parameters if isinstance(w.space.get(n), Ref) and n in w.expressions]
    if not names or w.loop:
        return None
    n = w.one(names)
    return w.plain(f"{n}.data = {n}.detach() {w.one(('+ 1', '* 2', '* 0.5 + p.detach()'))}")


def _freeze(w):
    n, _ = w.some()
    if n is None or w.loop:
        return None
    name = w.name("f")
    text = w.plain(f"{name} = freeze({n}, name={name!r})")
    if text:
        w.expressions.append(name)
    return text


def _delete(w):
    names = [e for e in w.expressions if re.fullmatch(r"[a-z]\d*", e) and e in w.space]
    if not names or w.depth:
        return None
    name = w.one(names)
    w.expressions = [e for e in w.expressions if e != name]
    return w.plain(f"del {name}")


def _container(w):
    n, _ = w.some()
    if n is None or w.loop:
        return None
    d = w.space.get("d")
    ways = ["h"]
    if isinstance(d, dict):
        ways += ["d['x'] = {n}", "d['y'] = {n}", "d.update(z={n})"]
        ways += ["d['l'][0] = {n}", "d['l'].append({n})"] * ("l" in d)
    elif isinstance(d, list):
        ways += ["d[0] = {n}", "d[-1] = {n}"]
    way = w.one(ways)
    if way == "h":
        name = w.name("h")
        way = f"{name} = {w.one(('[{n}, {n}]', '{{0: {n}}}'))}"
        w.expressions.append(f"{name}[0]")
    text = w.plain(way.format(n=n))
    if text and isinstance(d, dict):
        w.expressions += [e for e in ("d['y']", "d['z']") if e not in w.expressions]
    return text


def _helper(w):
    """Call a nested function: one that was written, or a new one."""
    if w.signatures and w.chance(2):
        name, count, many = w.one(w.signatures)
        return _call(w, name, [w.some()[0] for _ in range(count)], many)
    if w.depth or len(w.signatures) > 1:
        return None
    arguments = [w.some()[0] for _ in range(1 + w.pick(2))]
    if None in arguments:
        return None
    form = w.one(("@freeze_inputs\n",) * 5 + ("", '@freeze_inputs(mutable=("t",))\n'))
    expressions, space = w.expressions, w.space
    inner = {k: space[k] for k in (*_GLOBAL, "p", "q")}
    known: dict = {}
    try:
        for letter, argument in zip("ts", arguments, strict=False):
            inner[letter] = w.evaluated(argument)
            if form and not ("mutable" in form and letter == "t"):
                inner[letter] = w.run.enter_all(inner[letter], letter, known, False)
    except Undefined:
        return None
    w.space, w.expressions = inner, list("ts"[: len(arguments)])
    lines = w.block(4)
    some = [n for n, _ in w.tensors()]
    result = w.one(("t", "t", "{0}", "{0}, {1}", "t * p")).format(w.one(some), w.one(some))
    part = view(w, w.one(some), w.evaluated(w.one(some))) if w.chance(3) else None
    result = result if part is None or w.evaluated(part) is None else part
    w.expressions, w.space = expressions, space
    if form != "@freeze_inputs\n":
        w.restart()
    name = f"helper{len(w.signatures)}"
    head = f"def {name}({', '.join('ts'[: len(arguments)])}):"
    text = form + _nest(head, [*_fresh(lines), f"return {result}"])
    if not w.execute(text):
        return None
    w.helpers.append(text + "\n\n\n")
    many = result.count(",") == 1 and re.fullmatch(r"[\w, ]+", result) is not None
    w.signatures.append((name, len(arguments), many))
    return _call(w, name, arguments, many)


def _fresh(lines):
    """Let `out` be a variable of the function's own where it is used."""
    return (
        ["out = torch.zeros((), dtype=torch.float64)", *lines]
        if any("out = out" in line for line in lines)
        else lines
    )


def _call(w, name, arguments, many):
    if None in arguments:
        return None
    if w.chance(4):
        arguments = [*arguments[:-1], f"{'ts'[len(arguments) - 1]}={arguments[-1]}"]
    text = f"{name}({', '.join(arguments)})"
    names = [w.name() for _ in range(1 + many)]
    if not w.chance(5):
        text = f"{', '.join(names)} = {text}"
    if not w.execute(text):
        w.restart()  # a helper that is not guarded may have written before it was refused
        return None
    w.expressions += [n for n in names if n in w.space and n not in w.expressions]
    return text


_SIMPLE = (_read, _view, _write, _read, _view, _write, _write, _views, _metadata)
NESTED = (*_SIMPLE, _rows, _container, _freeze)
KINDS = (
    *_SIMPLE, *_SIMPLE, _no_grad, _no_grad, _loop, _loop, _freeze, _helper, _helper, _helper,
    _container, _delete, _if, _rows, _data,
)  # fmt: skip

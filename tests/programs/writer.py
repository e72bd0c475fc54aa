"""Writes a program statement by statement, running each in the reference as it goes.

So it always knows shapes and values, and a statement that PyTorch would refuse is not kept. What to
write is decided by `pick(n)`, which returns a number below n: Hypothesis draws it.
"""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs import functions, inputs
from tests.programs.check import Program, data
from tests.programs.expressions import read, view
from tests.programs.reference import Ref, Run, Undefined
from tests.programs.writes import write

_GLOBAL = ("torch", "F", "data", "freeze", "freeze_inputs", "SafeModule", "out", *functions.ALL)
REFUSED = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, Undefined)
_FILE = "<program being written>"
_codes: dict = {}


def _compiled(text, mode):
    code = _codes.get((text, mode))
    if code is None:
        if len(_codes) > 50_000:
            _codes.clear()
        code = _codes[text, mode] = compile(text, _FILE, mode)
    return code


class Writer:
    """A program being written, and the state of the reference after its last statement."""

    def __init__(self, pick):
        self.pick = pick
        self.inputs, self.parameters = inputs.write(self)
        self.form = self.pick(6)
        """4: a snapshot; 5: a module; else a function."""
        self.helpers: list[str] = []
        self.signatures: list[tuple[str, int, bool]] = []
        self.blocks: list[str] = []
        """The statements of forward so far, each with what is nested in it."""
        self.names = 0
        self.refused = 0
        self.loop = 0
        """Length of the loop that is being written."""
        self.depth = 0
        self.left = 2 + self.pick(18)
        """Statements that may still be written."""
        self.start()

    # -- choices -----------------------------------------------------------------------------------

    def one(self, options):
        return options[self.pick(len(options))]

    def chance(self, n):
        """Say yes once in n times; no is the simpler answer."""
        return self.pick(n) == n - 1

    def name(self, letter="v"):
        self.names += 1
        return f"{letter}{self.names}"

    # -- state -------------------------------------------------------------------------------------

    def start(self):
        """Run everything written so far from the start."""
        self.space = {"torch": torch, "F": F, "data": data, **functions.ALL}
        exec(_compiled(self.inputs, "exec"), self.space)
        run = self.run = Run(_FILE)
        self.space.update(run.namespace())
        for helper in self.helpers:
            exec(_compiled(helper, "exec"), self.space)
        known: dict = {}
        run.level = 1
        for name in self.parameters:
            value = self.space[name]
            self.space[name] = run.enter_all(value, name, known, self.form == 4)
        self.expressions = [e for n in self.parameters for e in inputs.paths(self.space[n], n)]
        self.space["out"] = torch.zeros((), dtype=torch.float64)
        for block in self.blocks:
            exec(_compiled(block, "exec"), self.space)

    def restart(self):
        """Undo what was done since the last whole statement."""
        known = self.expressions
        self.start()
        self.expressions = [e for e in known if self.evaluated(e) is not None]

    def evaluated(self, text):
        """Return the value of an expression, None if it has none."""
        kept = len(self.run.kept)
        try:
            return eval(_compiled(text, "eval"), self.space)
        except (*REFUSED, NameError, KeyError, AttributeError):
            return None
        finally:
            self.run.forget(kept)

    value = evaluated

    def tensors(self):
        """Return the tensors that the program can name, with what stands for them."""
        found = []
        for text in self.expressions:
            x = self.evaluated(text)
            if isinstance(x, (Ref, Tensor)) and x.numel():
                found.append((text, x))
        return found

    def some(self, *, protected=False):
        """Choose a tensor, newest first; the simplest choice is the oldest."""
        found = [
            (n, x)
            for n, x in self.tensors()
            if not protected or (isinstance(x, Ref) and x.protected)
        ]
        return self.one(found) if found else (None, None)

    def execute(self, text):
        """Run a statement; False, with nothing changed, if it is refused."""
        count, kept = self.run.count, len(self.run.kept)
        try:
            exec(_compiled(text, "exec"), self.space)
        except REFUSED:
            self.refused += 1
            self.run.forget(kept)
            if self.run.count != count:  # `x[0] += y` may write before it is refused
                if self.depth:
                    raise Undefined("half of a statement has run") from None
                self.restart()
            return False
        return True

    # -- statements --------------------------------------------------------------------------------

    def statement(self):
        """Write one statement, with what is nested in it: its text, or None if none came about."""
        self.left -= 1
        kinds = _NESTED if self.depth else _KINDS
        return self.one(kinds)(self)

    def plain(self, text):
        return text if text is not None and self.execute(text) else None

    def block(self, most):
        """Write some statements that are nested in one: their lines."""
        self.depth += 1
        lines = []
        for _ in range(1 + self.pick(most)):
            text = self.statement()
            if text is not None:
                lines += text.split("\n")
        self.depth -= 1
        return lines

    def program(self):
        """Write the whole program."""
        while self.left > 0:
            text = self.statement()
            if text is not None:
                self.blocks.append(text)
        lines = ["out = torch.zeros((), dtype=torch.float64)"]
        lines += [line for block in self.blocks for line in block.split("\n")]
        lines.append(f"return {self._result()}")
        names = ", ".join(self.parameters)
        parts = [*self.helpers]
        if self.form == 5:
            body = "".join(f"        {line}\n" for line in lines)
            parts += ["class Net(SafeModule):\n", f"    def forward(self, {names}):\n", body]
            parts += ["\n\nforward = Net()\n"]
        else:
            snapshot = "(snapshot=True)" if self.form == 4 else ""
            body = "".join(f"    {line}\n" for line in lines)
            parts += [f"@freeze_inputs{snapshot}\n", f"def forward({names}):\n", body]
        return Program(self.inputs, "".join(parts))

    def _result(self):
        names = [n for n, _ in self.tensors()]
        some = [self.one(names) for _ in range(self.pick(4))] if names else []
        if some and self.chance(4):
            return f"{{'out': out, 'some': [{', '.join(some)}]}}"
        return ", ".join(["out", *some])


# -- kinds of statements ---------------------------------------------------------------------------


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
    text = form + _nest(
        head, [*_fresh(lines), f"return {result}"]
    )
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
_NESTED = (*_SIMPLE, _rows, _container, _freeze)
_KINDS = (
    *_SIMPLE, *_SIMPLE, _no_grad, _no_grad, _loop, _loop, _freeze, _helper, _helper, _helper,
    _container, _delete, _if, _rows, _data,
)  # fmt: skip

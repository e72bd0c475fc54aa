"""Writes a program statement by statement, running each in the reference as it goes.

So it always knows shapes and values, and a statement that PyTorch would refuse is not kept. What to
write is decided by `pick(n)`, which returns a number below n: Hypothesis draws it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs import functions, inputs
from tests.programs.calls import Run
from tests.programs.memory import Undefined
from tests.programs.reference import Ref
from tests.programs.runs import Program, data
from tests.programs.statements import KINDS, NESTED

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
        return self.one(NESTED if self.depth else KINDS)(self)

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

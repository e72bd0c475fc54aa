"""Names come from the very expression that ran, wherever it stands in the line."""

from __future__ import annotations

import linecache
import textwrap

import pytest
import torch
import torch.nn.functional as F

from safemodule._explain_arguments import saved_by_function, saved_expression
from safemodule._explain_frames import Place, location, span
from safemodule._explain_source import (
    definition_line,
    is_argument,
    last_binding,
    spelling,
    written_expression,
)

_numbers = iter(range(1_000_000))


def function(source):
    """Compile a function `f` with source that tracebacks can show."""
    name = f"<test {next(_numbers)}>"
    source = textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"torch": torch, "F": F}
    exec(compile(source, name, "exec"), space)
    return space["f"]


def places(f, end):
    """Return the places in a function whose instruction ends at the end of some source text."""
    found = []
    for offset, _ in enumerate(f.__code__.co_positions()):
        place = Place(f.__code__, 2 * offset)
        at = span(place)
        if at is not None:
            line = linecache.getline(f.__code__.co_filename, at.end_line)
            if line.encode()[: at.end_column].decode().endswith(end):
                found.append(place)
    assert found, end
    return found[-1]


SAVED = [
    ("y = x.masked_fill(mask, 0.0).sum()", "mask, 0.0)", "masked_fill", "mask", "mask"),
    ("y = x.gather(1, index=idx)", "idx)", "gather", "index", "idx"),
    ("y = x.gather(1, idx)", "idx)", "gather", "index", "idx"),
    ("y = torch.sigmoid(x)", "(x)", "sigmoid", "result", "y"),
    ("y = torch.sigmoid(x).sum()", "sigmoid(x)", "sigmoid", "result", ""),
    ("y = self.net(x)", "(x)", "relu", "result", ""),
    ("y: int = x.exp()", ".exp()", "exp", "result", "y"),
    ("print(y := x.exp())", ".exp()", "exp", "result", "y"),
    ("y = z = x.exp()", ".exp()", "exp", "result", "y"),
    ("x.sigmoid_()", "sigmoid_()", "sigmoid", "result", "x"),
    ("x *= w", "*= w", "mul", "other", "w"),
    ("y = x * w", "x * w", "mul", "self", "x"),
    ("y = x * w", "x * w", "mul", "other", "w"),
    ("y = 2 * x", "2 * x", "mul", "self", "x"),
    ("y = (x @ self.w).sum()", "self.w", "mm", "mat2", "self.w"),
    ("y = x @ self.w", "self.w", "mm", "mat2", "self.w"),
    ("y = x ** p", "** p", "pow", "exponent", "p"),
    ("y = -x", "-x", "neg", "self", "x"),
    ("y = x[idx]", "[idx]", "index", "indices", "idx"),
    ("y = x[idx]", "[idx]", "index", "self", "x"),
    ("y = x.pow(2)", "pow(2)", "pow", "self", "x"),
    ("y = x ** p", "** p", "pow", "result", "y"),
    ("y = x @ w", "@ w", "mm", "scale", ""),
    ("y = x > w", "> w", "gt", "self", "x"),
    ("x *= w", "*= w", "mul", "result", "x"),
    ("y = torch.nn.functional.linear(x, w, b)", "w, b)", "addmm", "mat2", "w"),
    ("y = torch.where(cond, x, w)", "x, w)", "where", "condition", "cond"),
    ("y = torch.mul(x, w)", "x, w)", "mul", "other", "w"),
    ("y = F.linear(x, w, b)", "w, b)", "addmm", "mat2", "w"),
    ("y = F.linear(x, w, b)", "w, b)", "addmm", "mat1", "x"),
    ("y = F.layer_norm(x, (3,), w)", "(3,), w)", "native_layer_norm", "weight", "w"),
    ("y = F.linear(*args)", "(*args)", "addmm", "mat2", ""),
    ("y = self.q(emb)", "(emb)", "addmm", "mat1", "emb"),
    ("y = self.q(emb)", "(emb)", "addmm", "mat2", ""),
    ("y = x.exp().mul(w.exp())", "w.exp())", "mul", "other", ""),
    ("y = batch['mask'] * w", "* w", "mul", "self", "batch['mask']"),
    ("y = F.relu(x)", "(x)", "relu", "result", "y"),
    ("y, z = x.max(1)", "max(1)", "max", "result", ""),
]


@pytest.mark.parametrize(("line", "end", "op", "argument", "name"), SAVED)
def test_saved_expression(line, end, op, argument, name):
    """The expression that PyTorch calls by an argument name; nothing where it has no name."""
    f = function(f"import torch\nimport torch.nn.functional as F\ndef f(self, x, w):\n    {line}\n")
    assert saved_expression(places(f, end), op, argument) == name


WRITTEN = [
    ("v = 1; mask.scatter_(1, a, True)", "True)", "mask", "scatter_"),
    ("x += 1", "x += 1", "x", "+="),
    ("x[0] += 1", "x[0] += 1", "x[0]", "+="),
    ("b[:, 2:] += b[:, :2]", "b[:, 2:] += b[:, :2]", "b", "item assignment"),
    ("h[done] = 0.0", "h[done]", "h", "item assignment"),
    ("batch['mask'][0] = 1", "batch['mask'][0]", "batch['mask']", "item assignment"),
    ("self.buf.copy_(x)", "(x)", "self.buf", "copy_"),
    ("x[:2].zero_()", "zero_()", "x", "zero_"),
    ("torch.add(x, 1, out=y)", "out=y)", "y", "add(out=...)"),
    ("F.relu(x, inplace=True)", "inplace=True)", "x", "F.relu(...)"),
    ("self.relu(x)", "relu(x)", "x", "self.relu(...)"),
    ("opt.step()", "step()", "", "opt.step(...)"),
    ("x.view(3).mul_(2)", "mul_(2)", "x", "mul_"),
    ("self.p.data.t().mul_(2)", "mul_(2)", "self.p", "mul_"),
    ("x.exp().mul_(2)", "mul_(2)", "", "mul_"),
    ("p.data -= 2", "p.data -= 2", "p", "item assignment"),
    ("a @= b", "a @= b", "a", "@="),
]


@pytest.mark.parametrize(("line", "end", "name", "how"), WRITTEN)
def test_written_expression(line, end, name, how):
    """What a line writes, and how it says so."""
    f = function(f"import torch\nimport torch.nn.functional as F\ndef f(self, x):\n    {line}\n")
    place = places(f, end)
    assert written_expression(place) == name
    assert spelling(place) == how


def test_chain_over_lines():
    """A call in a chain over several lines is found by its end."""
    f = function(
        """
        def f(x, mask):
            return (
                x.sum(-1)
                .masked_fill(mask, 0.0)
                .softmax(-1)
            )
        """
    )
    place = places(f, "mask, 0.0)")
    assert saved_expression(place, "masked_fill", "mask") == "mask"
    assert location(place).lineno == 5


def test_characters_beyond_ascii():
    """Columns count bytes, and names may be any."""
    f = function("def f(x, größe):\n    é = 'ü'; größe.add_(1)\n")
    assert written_expression(places(f, "add_(1)")) == "größe"


@pytest.mark.parametrize("source", ["", "%matplotlib inline\nx = 1\n"])
def test_no_source(source):
    """Without source, or without Python in it, there are no names."""
    f = function("def f(x):\n    x.add_(1)\n")
    place = places(f, "add_(1)")
    name = f.__code__.co_filename
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    assert written_expression(place) == ""
    assert spelling(place) == ""
    assert saved_expression(place, "add", "self") == ""
    assert last_binding(f.__code__, "x", 9) is None
    assert definition_line(f.__code__) == 1


def test_operands_that_end_together():
    """An item that ends where a sum ends is told from it by where it begins."""
    f = function("def f(x, w, idx):\n    y = x + w[idx]\n")
    ends = [Place(f.__code__, 2 * n) for n, _ in enumerate(f.__code__.co_positions())]
    begins = {span(place).column for place in ends if span(place) and span(place).end_column == 18}
    assert begins == {8, 12}
    named = {saved_expression(p, "index", "self") for p in ends if span(p) and span(p).column == 12}
    assert "w" in named


def test_no_place():
    """A thread of the engine has no line."""
    nowhere = Place(None, -1)
    assert span(nowhere) is None
    assert location(nowhere) is None
    assert written_expression(nowhere) == ""


def test_arguments():
    """A parameter is an argument as long as nothing else is bound to its name."""
    f = function(
        """
        def f(a, b, c, *, d):
            b = b + 1
            c += 1
            e = 1
        """
    )
    assert [is_argument(f.__code__, n) for n in "abcde"] == [True, False, True, True, False]


def test_last_binding():
    """The nearest line above that binds a name."""
    f = function(
        """
        def f(x):
            y = x
            for i, y in enumerate(x):
                pass
            y.requires_grad_()
            z = [y for y in x]
            if (q := 1):
                self.w = q
            y = 3
        """
    )
    code = f.__code__
    assert [last_binding(code, "y", line) for line in (3, 4, 5, 7, 99)] == [None, 3, 4, 6, 10]
    assert last_binding(code, "q", 99) == 8
    assert last_binding(code, "self.w", 99) == 9


def test_definition_line():
    """The line of the `def`, not of a decorator."""
    f = function("import functools\n\n@functools.cache\n@staticmethod\ndef f(x):\n    pass\n")
    assert definition_line(f.__wrapped__.__func__.__code__) == 5


def test_saved_by_function():
    """What a custom Function gives to `save_for_backward`, by position."""
    f = function(
        """
        def f(ctx, x, y):
            z = x * y
            ctx.save_for_backward(x, z, x * 2)
            return z
        """
    )
    assert [saved_by_function(f, n) for n in range(4)] == ["x", "z", "", ""]
    assert saved_by_function(len, 0) == ""
    source = linecache.getlines(f.__code__.co_filename)
    source.append("%load_ext notebook\n")
    linecache.cache[f.__code__.co_filename] = (1, None, source, f.__code__.co_filename)
    assert saved_by_function(f, 0) == ""  # the whole is no Python
    assert saved_by_function(None, 0) == ""

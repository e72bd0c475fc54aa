"""Small programs that random ones were made of when they failed: each showed a fault, now mended.

They run on the same inputs, as random programs do: guarded and in the reference, compared in values,
gradients, records and the caller's side.
"""

from __future__ import annotations

import logging

import pytest
import torch

from tests.programs.check import Program, check, check_strict, run_guarded

INPUTS = """\
a = data(2, 3).requires_grad_()
b = data(2, 5, seed=1)[:, 1:-1]
x = data(4, seed=2)
y0 = data(4, seed=3).requires_grad_()
y = y0 * 1.5
z = torch.view_as_complex(data(3, 2, seed=4)).requires_grad_()
m = data(2, seed=5) > 0
k = torch.tensor(1)
p = (data(seed=6) + 1).requires_grad_()
g = data(5, seed=7)[1:-1].requires_grad_()
args = (a, b, x, y, z, m, k, g)
leaves = [a, y0, z, p, g]
"""
HEAD = "@freeze_inputs\ndef forward(a, b, x, y, z, m, k, g):\n"
INNER = "@freeze_inputs\ndef inner(t):\n    {}\n\n\n"

# What went wrong, by name; the statements of forward.
FINDINGS = {
    # -- freeze ------------------------------------------------------------------------------------
    "a frozen handle was taken for a view of the handle it was made of": """
        v = x[0]
        f = freeze(x, name='f')
        x[0] = 1.0
        return f, x, v
    """,
    "a frozen handle that was returned stayed a handle": """
        return freeze(x, name='f'), freeze(a, name='g')[0]
    """,
    "a frozen handle that was returned was the source, written since": """
        f = freeze(x, name='f')
        x += 1
        return x, f, f[:1]
    """,
    "a frozen handle that was returned had the new shape of its source": """
        f, g = freeze(a, name='f'), freeze(b, name='g')
        a.t_()
        b.unsqueeze_(1)
        g.t_()
        return a, f, g
    """,
    "a frozen view that was returned was the view, written since": """
        v = x[:2]
        f = freeze(v, name='f')
        x[1].mul_(0)
        return v, f
    """,
    # -- geometry in place -------------------------------------------------------------------------
    "a view whose geometry changed in place wrote the caller's memory": """
        x = x[k]
        x.unsqueeze_(0)
        torch.selu_(x)
        return x
    """,
    "a view of a leaf whose geometry changed in place was refused as a leaf": """
        a = a.unsqueeze(1)
        a.unsqueeze_(0)
        a *= 0.5
        return a
    """,
    "a view of a handle whose geometry had changed missed a write": """
        x.unsqueeze_(-1)
        v, = x.unbind(1)
        v.unsqueeze_(0)
        torch.cumsum(x * 1, 0, out=x)
        return v, x
    """,
    "geometry under no_grad made the handle a view that autograd refuses to write": """
        with torch.no_grad():
            b.t_()
        b.reshape(-1).mul_(p)
        b.mul_(p)
        return b
    """,
    # -- what autograd knows -----------------------------------------------------------------------
    "a detached view that had gained a gradient lost it": """
        d = x.detach()
        d[1] *= p
        e = b.data
        e.mul_(p)
        r = e * e
        e.add_(1)
        return d, x, r + e, b
    """,
    "a view of a detached view lost its gradient": """
        d = x.detach()
        v = d[:2]
        d.mul_(p)
        r = x * p
        x.add_(1)
        return v, d, r, x
    """,
    "an operation that reads what it writes broke its own gradient": """
        y.addcmul_(y, p)
        x[0].mul_(x[0])
        a.mul_(a)
        return y, x, a
    """,
    "a list operation that reads what it writes broke its own gradient": """
        v, w, _, _ = y
        torch._foreach_mul_([v], w)
        torch._foreach_mul_([a[0]], [a[1]])
        return v, y, a
    """,
    "a write through a view of another dtype reached what autograd saved": """
        y.add_(1)
        r = y.amax()
        torch.neg(y.view(torch.int64), out=y.view(torch.int64))
        return r
    """,
    "a part of a part was refused as a leaf": """
        x[:1][:] += y0[:1]
        x[2:][:] += p
        return x
    """,
    "outputs of one view function could not be read after a write": """
        v, w = a
        u = a.chunk(3, 1)[0]
        a.mul_(p)
        v.add_(1)
        w += v
        return v * u[0], w, a, u
    """,
    "a custom function was refused a view that no gradient flows through": """
        double_(a.detach()[...])
        d = y.detach()
        d.add_(1)
        double_(d[:2])
        return y, a
    """,
    # -- memory ------------------------------------------------------------------------------------
    "tensors that an index wrote were taken for another view": """
        v = a[k]
        w = a[k:]
        k.sub_(1)
        a.mul_(2)
        return v, w, a[k]
    """,
    "a frozen detached alias that was left behind came back as the input, with its gradient": """
        d = a.data
        f = freeze(d, name='f')
        torch.nn.init.constant_(a, 0.3)
        return f
    """,
    "a copy with the input's own geometry was taken for a leaf after the write of a view": """
        s = b.as_strided((2,), (2,))
        s.mul_(p)
        b.add_(p)
        return b
    """,
    "a copy with the input's own geometry was a view, of which `.data` took the memory away": """
        s = g.as_strided((1,), (1,))
        g.data = g
        g[0].mul_(2)
        return g
    """,
    "the new memory of `.data` stayed a handle": """
        v = y[:1]
        y.data = y.detach() * 2
        y.add_(1)
        return y, v
    """,
    "the imaginary part of a conjugate was written with the wrong sign": """
        z.conj().imag.add_(p)
        z.real = 0.5 * z.imag
        return z
    """,
}
# The same with a nested call: the statement of inner(t), the statements of forward.
NESTED = {
    "a copy made beside a view of a nested call had gaps": (
        "return t.unbind(1)[0]",
        """
        v = inner(b)
        b.relu_()
        return b.view(6), v
        """,
    ),
    "a frozen handle that a nested call returned was its source": (
        "return t",
        """
        f = freeze(x, name='f')
        v = inner(f)
        v.add_(1)
        return x, f, v
        """,
    ),
    "a view of a frozen handle that a nested call returned was one of its source": (
        "return t[:]",
        """
        f = freeze(x, name='f')
        v = inner(f)
        v.add_(1)
        return x, f, v
        """,
    ),
    "a write of what a nested call returned was recorded for its ended argument": (
        "return freeze(t, name='g')",
        """
        v = inner(x)
        v.add_(1)
        m[0] = False
        return x, v
        """,
    ),
    "what a nested call wrote reached the outer handle": (
        "t += 1; return t",
        """
        v = inner(y)
        y.mul_(2)
        w = inner(y[0])
        return v, w, y
        """,
    ),
}


@pytest.fixture(autouse=True)
def _silent():
    """Write no log."""
    logger = logging.getLogger("safemodule")
    logger.disabled = True
    yield
    logger.disabled = False


def _lines(text):
    return "".join(f"    {line[8:]}\n" for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("statements", FINDINGS.values(), ids=FINDINGS)
def test_finding(statements):
    """The program is as on clones, and strict mode refuses its first write."""
    program = Program(INPUTS, HEAD + _lines(statements))
    check(program)
    check_strict(program)


@pytest.mark.parametrize(("inner", "statements"), NESTED.values(), ids=NESTED)
def test_finding_with_a_nested_call(inner, statements):
    """The program is as on clones, and strict mode refuses its first write."""
    program = Program(INPUTS, INNER.format(inner) + HEAD + _lines(statements))
    check(program)
    check_strict(program)


def test_a_snapshot_keeps_what_autograd_saved():
    """A write through `detach()` does not reach what was saved of a snapshot."""
    body = """
        r = k * p
        k.detach().sub_(1)
        return r, k
    """
    check(Program(INPUTS, HEAD.replace("inputs", "inputs(snapshot=True)") + _lines(body)))


@pytest.mark.skipif(
    not hasattr(torch.autograd.Function.apply, "__code__"),
    reason="torch 2.15 and later need not be told of the copy: see test_custom.py",
)
@pytest.mark.parametrize("statement", ["double_(a[0])", "with torch.no_grad(): double_(a)"])
def test_mark_dirty_as_the_first_write_is_refused(statement):
    """The first write by a custom function, of a view or under no_grad, is refused in plain words."""
    program = Program(INPUTS, HEAD + f"    {statement}\n    return a\n")
    with pytest.raises(RuntimeError, match="custom autograd Function is the first to write"):
        run_guarded(program)

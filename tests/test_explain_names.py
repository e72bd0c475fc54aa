"""What a tensor is called: read from frames and expressions, and never by a call."""

from __future__ import annotations

import pytest
import torch

from safemodule._explain_names import evaluate, share


def test_share():
    """Same memory or not; what has none shares with nobody."""
    x = torch.ones(3)
    sparse = torch.eye(3).to_sparse()
    assert share(x[1:], x)
    assert not share(x.clone(), x)
    assert not share("x", x)
    assert not share(sparse, x)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("x", "x"),
        ("pytest", "pytest"),
        ("x.grad", None),
        ("x[1:, None]", "x"),
        ("x[unknown]", "x"),
        ("batch['k']", "value"),
        ("batch[key]", "value"),
        ("batch[-1]", None),
        ("rows[1]", "second"),
        ("make()", None),
        ("x +", None),
    ],
)
def test_evaluate(expression, found):
    """Names, attributes and items; a view of a tensor stands for the tensor."""

    def make():
        pytest.fail("it was called")

    values = {"x": torch.ones(3), "value": [1], "second": "s", "pytest": pytest}
    batch, rows = {"k": values["value"]}, ["f", values["second"]]
    scope = {**values, "key": "k", "batch": batch, "rows": rows, "make": make}
    exec("import sys\nframe = sys._getframe()", scope)
    assert evaluate(expression, scope["frame"]) is values.get(found)

"""Rule 8: handle, family, guard and views die by reference counting when the call ends."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from safemodule import InputMutationError, freeze, freeze_inputs, mode, record
from tests.helpers import forward_of


@pytest.fixture
def no_gc():
    """Switch the cycle collector off: whatever needs it stays alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def reads(x):
    """Only reads."""
    return (x[0] * x.t()[1:].sum()) + x.mean()


def writes(x):
    """Writes with live views."""
    v, w = x[0], x.t()
    x.add_(1)
    v.mul_(2)
    y = x * w
    x.mul_(3)
    return y.sum() + v.sum()


def returns_views(x):
    """Hands views out."""
    x.add_(1)
    return x[0], {"v": x.view(-1)}


def returns_input(x):
    """Hands the input out."""
    return x


def metadata(x):
    """Changes its geometry."""
    x.t_()
    v = x[0]
    x.add_(1)
    return v * 1


def leaf(x):
    """Makes a leaf of a view."""
    z = x.detach().requires_grad_()
    (z**2).sum().backward()
    return z.grad


def exports(x):
    """Hands out raw memory."""
    return torch.from_numpy(x.detach().numpy()) * 1


def frozen(x):
    """Freezes a local tensor."""
    t = freeze(x * 1)
    y = t * t
    t.zero_()
    return y.sum()


def containers(x):
    """Puts the input in containers."""
    batch = {"x": x, "list": [x, (x,)]}
    batch["x"].add_(1)
    return batch


safe_reads, safe_writes = freeze_inputs(reads), forward_of(writes)


def nested(x):
    """Calls other guarded functions."""
    return safe_writes(x) + safe_reads(x)


CASES = [
    reads, writes, returns_views, returns_input, metadata, leaf, exports, frozen, containers, nested,
]  # fmt: skip


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_everything_dies_with_the_call(case, grad, no_gc):
    """No tensor made by the call outlives its results, without the cycle collector."""
    net = forward_of(case)
    x = torch.ones(3, 3, requires_grad=grad)
    net(x)
    alive = weakref.ref(torch.ones(3, 3, requires_grad=grad))
    del x
    assert alive() is None
    x = torch.ones(3, 3, requires_grad=grad)
    input_ref = weakref.ref(x)
    before = count()
    out = net(x)
    del out, x
    assert input_ref() is None, "the caller's tensor is kept alive"
    assert count() <= before - 1, "tensors are left"


def count():
    """Return how many tensors are alive."""
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("case", [reads, writes, returns_views, containers, nested])
def test_flat_over_a_thousand_calls(case, no_gc):
    """Memory does not grow: the number of objects after 1,000 calls is that after 100."""
    net = freeze_inputs(case)
    x = torch.ones(3, 3)
    for _ in range(100):
        net(x)
    before = len(gc.get_objects())
    for _ in range(1_000):
        net(x)
    assert len(gc.get_objects()) - before < 50


def test_flat_with_containers_as_inputs(no_gc):
    """Stand-in containers die likewise."""

    @freeze_inputs
    def forward(batch, *rest, **named):
        batch["x"].add_(1)
        batch["y"] = 1
        rest[0].append(batch)
        return named["k"]

    def call():
        forward({"x": torch.ones(2)}, [1], k=(torch.ones(1),))

    for _ in range(100):
        call()
    before = len(gc.get_objects())
    for _ in range(1_000):
        call()
    assert len(gc.get_objects()) - before < 50


def test_flat_when_forward_raises(no_gc):
    """An exception inside forward leaves nothing, nor does a refused write."""

    @freeze_inputs
    def forward(x):
        v = x[0]
        x.add_(1)
        raise ValueError(str(v.shape))

    def call(x):
        with contextlib.suppress(ValueError, InputMutationError):
            forward(x)

    x = torch.ones(3, 3)
    for strict in ("copy", "strict"):
        with mode(strict):
            for _ in range(100):
                call(x)
            before = len(gc.get_objects())
            for _ in range(1_000):
                call(x)
            assert len(gc.get_objects()) - before < 50


def test_a_record_keeps_no_tensor(no_gc):
    """Records hold strings and numbers only."""
    x = torch.ones(3, 3)
    ref = weakref.ref(x)
    with record() as log:
        forward_of(writes)(x)
        del x
        assert ref() is None
    assert len(log) > 0


def test_an_error_keeps_no_tensor_of_ours(no_gc):
    """`InputMutationError.mutation` holds strings and numbers only."""
    x = torch.ones(3, 3)
    ref = weakref.ref(x)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward_of(writes)(x)
    error = caught.value.with_traceback(None)
    del caught, x
    assert ref() is None
    assert error.mutation is not None

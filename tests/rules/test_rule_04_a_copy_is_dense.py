"""Rule 4: a copy is dense, as a clone is; strides that were read earlier still mean the input's."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import compare_with_clones, forward_of


def gaps():
    """Every second row and column of a larger tensor."""
    return torch.arange(24.0).reshape(6, 4)[1::2, ::2]


def offset():
    """A slice that starts in the middle."""
    return torch.arange(12.0)[4:8].reshape(2, 2)


def overlap():
    """Windows that share memory."""
    return torch.arange(6.0).unfold(0, 3, 1)


def expanded():
    """Stride 0."""
    return torch.arange(3.0).expand(4, 3)


def transposed():
    """Dense, in another order."""
    return torch.arange(6.0).reshape(2, 3).t()


INPUTS = [gaps, offset, overlap, expanded, transposed]
every = pytest.mark.parametrize("make", INPUTS, ids=lambda make: make.__name__)


def write_all(x):
    """A write to every element."""
    x.add_(1)
    return x * 1


def write_one(x):
    """A write to one element: only that one changes."""
    x[1, 0] = 9.0
    return x * 1


def write_through_views(x):
    """Views taken before and after the copy."""
    row = x[0]
    flipped = x.t()
    x.mul_(2)
    flipped[0] = 5.0
    return x * 1, row * 1, flipped * 1


@every
@pytest.mark.parametrize(
    "case", [write_all, write_one, write_through_views], ids=lambda case: case.__name__
)
def test_as_if_cloned(make, case):
    """Inputs with gaps, an offset, overlaps or stride 0 behave as their clones do."""
    compare_with_clones(forward_of(case), case, lambda: (make(),), strides=False)


@every
def test_geometry_after_a_write_is_that_of_a_clone(make):
    """From the first write on, strides and offset are a clone's."""
    seen = {}

    def forward(x):
        x.add_(1)
        seen.update(stride=x.stride(), offset=x.storage_offset())
        return x

    out = forward_of(forward)(make())
    clone = make().clone()
    assert seen == {"stride": clone.stride(), "offset": 0}
    assert out.stride() == clone.stride()
    assert out.untyped_storage().nbytes() == clone.untyped_storage().nbytes()


def test_geometry_before_a_write_is_the_inputs():
    """A plain module sees the caller's strides, and so does a guarded one."""
    x = gaps()
    assert forward_of(lambda x: (x.stride(), x.storage_offset()))(x) == ((8, 2), 4)


@pytest.mark.parametrize("make", [gaps, offset, overlap, transposed], ids=lambda m: m.__name__)
def test_as_strided_with_strides_read_before_the_write(make):
    """`x.as_strided(x.size(), x.stride())`, then a write: never outside the copy."""

    def forward(x):
        v = x.as_strided(x.size(), x.stride(), x.storage_offset())
        y = v * 1
        x.add_(1)
        return y, v * 1

    x = make()
    was = x.clone()
    y, v = forward_of(forward)(x)
    assert torch.equal(x, was)
    assert torch.equal(y, was)
    assert v.numel() == was.numel()
    assert v.isfinite().all()


def test_as_strided_of_a_dense_input_is_a_view():
    """Where the geometry of input and copy agree, it follows later writes."""

    def forward(x):
        v = x.as_strided((2, 2), (3, 1), 1)
        x.mul_(2)
        return v * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.arange(6.0).reshape(2, 3),))


def test_as_strided_of_a_slice_does_not_reach_the_rest_of_the_storage():
    """Through a view of the input a module could write the caller's larger tensor: it cannot."""

    def forward(x):
        x.as_strided((1,), (1,), 0).fill_(7.0)
        return x * 1

    base = torch.zeros(6)
    x = base[2:4]
    try:
        forward_of(forward)(x)
    finally:
        assert base.tolist() == [0.0] * 6


def test_as_strided_as_a_function():
    """`torch.as_strided(x, ...)`, which could take `out=`, is the method."""

    def forward(x):
        sizes, strides, offset = x.size(), x.stride(), x.storage_offset()
        alias = torch.as_strided(x, sizes, strides, offset)
        x.add_(1)
        alias.mul_(2)
        return torch.as_strided(x, sizes, strides, offset), alias

    base = torch.arange(12.0).reshape(3, 4)
    x = base[1:, ::2]
    out, alias = forward_of(forward)(x)
    assert base.tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert torch.equal(out, (x + 1) * 2)
    assert torch.equal(alias, out)

"""Rule 2: a view is what it was when it was made, not what its arguments have become."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import compare_with_clones, forward_of


def by_index_tensor(x):
    """A 0-dim index changes."""
    i = torch.tensor(1)
    v = x[i]
    i.add_(1)
    x.add_(1)
    return v * 1


def by_index_in_a_tuple(x):
    """The same inside a tuple."""
    i = torch.tensor(1)
    v = x[i, :]
    i.add_(1)
    x.add_(1)
    return v * 1


def by_slice_of_tensors(x):
    """A slice whose bounds are tensors."""
    start = torch.tensor(1)
    v = x[start:]
    start.add_(1)
    x.add_(1)
    return v * 1


def by_list_of_sizes(x):
    """A list of sizes changes."""
    shape = [2, 4]
    v = x.view(shape)
    shape.reverse()
    x.add_(1)
    return v * 1


def by_list_of_dimensions(x):
    """A list of dimensions changes."""
    dims = [1, 0]
    v = x.permute(dims)
    dims.reverse()
    x.add_(1)
    return v * 1


def by_sections(x):
    """A list of sections changes."""
    sections = [1, 3]
    a, b = x.split(sections)
    sections[:] = [2, 2]
    with torch.no_grad():
        x.add_(1)
    return a.detach() * 1, b.detach() * 1


def by_another_tensor(x):
    """`view_as` takes a shape from a tensor, which then changes."""
    other = torch.zeros(8)
    v = x.view_as(other)
    other.resize_(2, 4)
    x.add_(1)
    return v * 1


def by_the_input_itself(x):
    """`expand_as` and `view_as` of the input."""
    v = x.view_as(x)
    w = x[:1].expand_as(x)
    x.add_(1)
    return v * 1, w * 1


def by_keyword(x):
    """Arguments by keyword, changed."""
    size = [2, 4]
    v = torch.reshape(input=x, shape=size)
    size.reverse()
    x.add_(1)
    return v * 1


CASES = [
    by_index_tensor, by_index_in_a_tuple, by_slice_of_tensors, by_list_of_sizes,
    by_list_of_dimensions, by_sections, by_another_tensor, by_the_input_itself, by_keyword,
]  # fmt: skip


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_view_is_replayed_as_it_was(case, grad):
    """The view of the copy is the view that was taken, whatever happened to its arguments."""

    def inputs():
        flat = case is by_another_tensor
        x = torch.arange(8.0).reshape(8 if flat else 4, *([] if flat else [2])).clone()
        return (x.requires_grad_(grad and case is not by_sections),)

    result = compare_with_clones(forward_of(case), case, inputs)
    assert [m.op for m in result.writes] == ["add_"]


def test_a_large_index_tensor_makes_a_copy():
    """An index of many elements is advanced indexing: no view, so nothing to remember."""

    def forward(x):
        i = torch.arange(3)
        v = x[i]
        i.zero_()
        x.add_(1)
        return v * 1

    compare_with_clones(forward_of(forward), forward, lambda: (torch.arange(8.0).reshape(4, 2),))

"""Rule 9: the caller's Python attributes on a tensor are readable through the handle."""

from __future__ import annotations

import pytest
import torch

from safemodule import freeze, freeze_inputs
from tests.helpers import forward_of


def tagged():
    """A tensor with an attribute."""
    x = torch.zeros(2, 3)
    x.tag = "t"
    return x


def test_attribute_is_readable():
    """Directly, by getattr, by hasattr."""

    def forward(x):
        return x.tag, getattr(x, "tag", None), hasattr(x, "tag"), hasattr(x, "other")

    assert forward_of(forward)(tagged()) == ("t", "t", True, False)


def test_attribute_is_readable_through_two_handles():
    """A handle of a handle."""
    inner = freeze_inputs(lambda x: x.tag)
    assert freeze_inputs(lambda x: inner(x))(tagged()) == "t"


def test_attribute_is_readable_after_a_write():
    """The written copy stands for the same input."""

    def forward(x):
        x.add_(1)
        return x.tag

    assert forward_of(forward)(tagged()) == "t"


def test_missing_attribute_reads_as_on_a_plain_tensor():
    """The error has the text of a plain tensor's."""
    with pytest.raises(AttributeError) as plain:
        torch.zeros(2).other
    with pytest.raises(AttributeError) as guarded:
        forward_of(lambda x: x.other)(tagged())
    assert str(guarded.value) == str(plain.value)


def test_a_view_has_no_attribute():
    """Nor has a view of a plain tensor."""
    assert forward_of(lambda x: hasattr(x[0], "tag"))(tagged()) is False


def test_setting_is_the_modules_own():
    """An attribute set inside is seen inside, not by the caller."""

    def forward(x):
        x.tag = "mine"
        x.fresh = 1
        return x.tag, x.fresh

    x = tagged()
    assert forward_of(forward)(x) == ("mine", 1)
    assert x.tag == "t"
    assert not hasattr(x, "fresh")


def test_freeze_keeps_them():
    """`freeze(x).tag`."""
    assert freeze(tagged()).tag == "t"


def test_attribute_that_is_a_tensor():
    """The attribute is the caller's object; what hangs on attributes is not guarded."""
    x = torch.zeros(2)
    x.mask = torch.ones(2)
    assert forward_of(lambda x: x.mask)(x) is x.mask

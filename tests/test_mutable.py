"""`Mutable[...]`: how the annotation is found."""

from __future__ import annotations

import functools
import typing
from typing import Annotated, Optional, get_type_hints

import pytest
import torch
from torch import Tensor

import safemodule
from safemodule import Mutable, SafeModule, freeze_inputs
from safemodule._mutable import declared_mutable

if typing.TYPE_CHECKING:
    from somewhere import Elsewhere  # a name that only type checkers know


def names(func, mutable=()):
    """Return the declared names of a function."""
    import inspect

    return declared_mutable(func, tuple(inspect.signature(func).parameters), mutable)


def test_shown():
    """As it is written."""
    assert repr(Mutable[int]) == "typing.Annotated[int, safemodule.Mutable]"


def test_forward_reference():
    """A part in quotes is a string inside of an object."""

    def func(a, b, c): ...

    func.__annotations__ = {
        "a": Optional["Mutable[Tensor]"],
        "b": Optional["Tensor"],
        "c": typing.ForwardRef("Mutable[Tensor]"),
    }
    assert declared_mutable(func, ("a", "b", "c"), ()) == {"a", "c"}


def test_evaluated_annotations():
    """Not strings."""

    def forward(x, cache): ...

    forward.__annotations__ = {"x": Tensor, "cache": Mutable[Tensor]}
    assert names(forward) == {"cache"}


def test_string_annotations():
    """As `from __future__ import annotations` leaves them."""

    def forward(x: Tensor, cache: Mutable[Tensor], y: int = 0) -> Mutable[Tensor]: ...

    assert names(forward) == {"cache"}


def test_qualified_name():
    """`safemodule.Mutable[...]`."""

    def forward(x: safemodule.Mutable[Tensor], y: Tensor): ...

    assert names(forward) == {"x"}


def test_inside_optional_and_union():
    """`Optional[Mutable[T]]`, `Mutable[T] | None`, `Mutable[T | None]`."""

    def forward(
        a: Optional[Mutable[Tensor]],  # noqa: UP045 -- what is tested
        b: Mutable[Tensor] | None,
        c: Mutable[Tensor | None],
        d: Tensor | None,
    ): ...

    assert names(forward) == {"a", "b", "c"}


def test_unknown_names():
    """A name that only type checkers know does not hide the mark."""

    def forward(a: Mutable[Elsewhere], b: Elsewhere, c: Annotated[Elsewhere, 1]): ...

    assert names(forward) == {"a"}


def test_alias():
    """An alias in the module or in a closure."""
    Cache = Mutable[dict[str, Tensor]]

    def forward(a: Cache, b: AliasOfModule):
        return Cache

    assert names(forward) == {"a", "b"}


AliasOfModule = Mutable[Tensor]


def test_other_annotations_are_left_alone():
    """`Annotated` with other marks, a class called Mutable-something."""

    class MutableThing: ...

    def forward(a: Annotated[Tensor, "Mutable"], b: MutableThing, c: "MutableThing[int]"): ...  # noqa: UP037

    assert names(forward) == frozenset()


def test_wrapped_function():
    """The annotations of what functools.wraps wraps count."""

    def forward(x, cache: Mutable[Tensor]):
        cache.add_(1)

    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs)

    cache = torch.zeros(1)
    freeze_inputs(wrapper)(torch.zeros(1), cache)
    assert cache.tolist() == [1]


def test_to_others_it_is_the_type():
    """`Mutable[T]` is `T` to whoever reads type hints."""

    def forward(x: Mutable[Tensor]): ...

    assert get_type_hints(forward) == {"x": Tensor}


def test_on_a_safe_module():
    """The same in a class."""

    class Net(SafeModule):
        def forward(self, x, cache: Mutable[Tensor]):
            cache.add_(1)
            x.add_(1)

    x, cache = torch.zeros(1), torch.zeros(1)
    Net()(x, cache)
    assert (x.tolist(), cache.tolist()) == ([0], [1])


def test_name_that_is_no_parameter():
    """The error lists the parameters."""

    def forward(x, y): ...

    with pytest.raises(
        ValueError, match=r"'z' is no parameter of .*forward; its parameters are: x, y"
    ):
        names(forward, ("z",))

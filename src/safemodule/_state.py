"""What a handle knows about itself: where it comes from, and how a view was made.

A handle carries a `Root` (or, until something happens to it, a plain tuple of the four fields a
`Root` starts from), a view carries a `View`. Ownership runs one way, so that everything dies by
reference counting when the call ends:

    view tensor -> View -> Family -> handle -> Root - - weak - -> Family - - weak - -> view tensors
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from safemodule._compat import fix_weakref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from safemodule._location import Location
    from safemodule._modes import Mode

_locks: Final = threading.Lock()

Path = str | tuple[Any, str, object]
"""Where a tensor stands in the arguments: a name, or (path of the container, format, key). Written out
only for a record: 0.3 us less for each tensor in a container."""


def written_out(path: Path) -> str:
    """Return a path as records show it: `batch['mask']`, `states[1][0]`."""
    steps: list[str] = []
    while type(path) is tuple:
        path, form, key = path
        steps.append(form % (key,))
    return "".join((cast("str", path), *reversed(steps)))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one decorated function declares; made once, shared by all its calls."""

    name: str
    """Qualified name of the function, for records."""
    positional: tuple[str, ...]
    """Names of the positional parameters, in order."""
    parameters: frozenset[str]
    """Names of all parameters."""
    variadic: str
    """Name of the `*args` parameter."""
    keywords: str | None
    """Name of the `**kwargs` parameter."""
    mutable: frozenset[str]
    mode: Mode | None
    snapshot: bool
    chained: bool
    """True for the `forward` of a `SafeModule`: a parent's forward called by it is not guarded."""
    where: Location
    """Where the function is defined: for writes that no line is known of."""
    paths: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """What `names` returned."""

    def names(self, count: int) -> tuple[str, ...]:
        """Return the paths of the first `count` arguments given by position."""
        known = self.paths.get(count)
        if known is None:
            more = count - len(self.positional)
            known = (*self.positional, *(f"{self.variadic}[{i}]" for i in range(more)))[:count]
            self.paths[count] = known
        return known


def module_name(plan: Plan, owner: type | None) -> str:
    """Return the qualified class name of a guarded module, or the qualified name of a function."""
    return plan.name if owner is None else f"{owner.__module__}.{owner.__qualname__}"


class Root:
    """The state of a handle: an input of one guarded call."""

    __slots__ = (
        "__weakref__",
        "argument",
        "exported",
        "family",
        "geometry",
        "lazy",
        "lock",
        "moves",
        "origin",
        "over",
        "owner",
        "pinned",
        "plan",
        "private",
        "read",
        "saved",
        "source",
        "written",
    )

    def __init__(
        self, source: Tensor | None, plan: Plan, owner: type | None, argument: Path
    ) -> None:
        self.source = source
        """The caller's tensor; None where there is none (a value that autograd saved)."""
        self.plan = plan
        self.owner = owner
        self.argument = argument if type(argument) is str else written_out(argument)
        self.origin: Root | None = None
        """The root whose earlier value this one keeps (see `redirect`)."""
        self.over = False
        """The guarded call has ended: the handle outlived it, stashed somewhere."""
        self.private = False
        """The handle's memory is its own copy."""
        self.written = False
        """A write has succeeded since it became private."""
        self.saved = False
        """An in-place op may have saved its result since the last redirect."""
        self.read = False
        """A differentiable operation has read it since (only kept where counts cannot tell)."""
        self.geometry = False
        """`as_strided` was used on an input that does not cover its storage: a copy is no clone."""
        self.lazy = False
        """A snapshot that shares the caller's storage until one of them is written."""
        self.moves = 0
        """How often the private copy moved, because autograd had saved its value."""
        self.pinned: str | None = None
        """The op that handed out the address of the private copy."""
        self.exported = 0
        """Owners of the private copy that came with handing out its memory."""
        self.family: weakref.ref[Family] | None = None
        self.lock: threading.RLock | None = None

    def first(self) -> Root:
        """Return the root that the guarded call made, of which this one may keep a value."""
        root = self
        while root.origin is not None:
            root = root.origin
        return root

    @property
    def module(self) -> str:
        """Qualified class name of the guarded module, or the function's qualified name."""
        return module_name(self.plan, self.owner)

    def locked(self) -> threading.RLock:
        """Return the lock around redirect and write; it is made at the first write."""
        if self.lock is None:
            with _locks:
                if self.lock is None:  # pragma: no branch -- another thread was first
                    self.lock = threading.RLock()
        return self.lock


class Family:
    """A handle and the views made of it. It lives as long as one of the views does."""

    __slots__ = ("__weakref__", "_limit", "handle", "root", "views")

    def __init__(self, handle: Tensor, root: Root) -> None:
        self.handle = handle
        self.root = root
        self.views: list[weakref.ref[Tensor]] = []
        self._limit = 32

    def add(self, view: Tensor) -> None:
        self.views.append(weakref.ref(view))
        if len(self.views) > self._limit:  # dead ones are pruned now and then: amortised O(1)
            self.views = [ref for ref in self.views if ref() is not None]
            self._limit = max(32, 2 * len(self.views))

    def live(self, kind: type) -> Iterator[Tensor]:
        """Yield the live views in the order they were made; those handed out as plain are not."""
        for ref in self.views:
            view: Any = ref()
            if view is not None and type(view) is kind:
                fix_weakref(view)
                state = view._safemodule
                if type(state) is View and state.family is self:  # it may have left (`set_`)
                    yield view


class View:
    """The state of a view: the call that made it, with every argument as it was then."""

    __slots__ = ("args", "family", "func", "grad", "index", "keeps", "kwargs", "parent")

    def __init__(
        self,
        family: Family,
        parent: View | None,
        func: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        index: tuple[int, ...],
        grad: bool,
    ) -> None:
        self.family = family
        self.parent = parent
        """The view it was made of; None where it was made of the handle."""
        self.func = func
        self.args = args
        """Frozen arguments: PARENT stands for the parent, containers and small tensors copied."""
        self.kwargs = kwargs
        self.index = index
        """Where it stood in the result: () for the result itself, (2,) for the third of a tuple."""
        self.keeps: Tensor | None = None
        """The tensor it was made of, where that may have a history of its own (`x.detach()`)."""
        self.grad = grad
        """Whether gradients were recorded when it was made."""


def handle_and_root(target: Any) -> tuple[Any, Root]:
    """Return the handle and the root that a handle or view belongs to."""
    state = target._safemodule
    if type(state) is View:
        return state.family.handle, state.family.root
    return target, root_of(target, state)


def root_of(handle: Any, state: Any) -> Root:
    """Return the Root of a handle, making it from the tuple that a new handle carries."""
    if type(state) is tuple:
        with _locks:
            state = handle._safemodule
            if type(state) is tuple:  # pragma: no branch -- another thread was first
                state = Root(*state)
                handle._safemodule = state
    return state

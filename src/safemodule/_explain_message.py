"""The words of an explanation: what was overwritten, who saved it, who wrote it, how to mend it."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from safemodule._errors import InplaceError
from safemodule._explain_frames import Place, location, span
from safemodule._location import Location
from safemodule._table import short_path

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Event", "Explanation", "event", "explanation_of", "line_event"]

Kind = Literal["made", "saved", "written"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to the tensor.

    Attributes:
        kind: ``"made"`` where it became what it is (a leaf, a view), ``"saved"``, ``"written"``.
        text: What happened, in words.
        where: The user's line, or None where there was none.
        mark: First and last column, from 0, of the expression in that line; None if not known.
    """

    kind: Kind
    text: str
    where: Location | None = None
    mark: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.where is None:
            return self.text
        line = self.where.line
        name = f"{short_path(self.where.filename)}:{self.where.lineno} in {self.where.function}"
        rows = [self.text, f"  {name}"]
        if line:
            rows.append(f"    {line}")
            if self.mark is not None and 0 < self.mark[1] - self.mark[0] < len(line):
                rows.append("    " + " " * self.mark[0] + "^" * (self.mark[1] - self.mark[0]))
        return "\n".join(rows)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an `InplaceError` says, in parts for tools; ``str()`` of it is the text.

    Attributes:
        sentence: PyTorch's own message.
        tensor: The tensor in words, such as ``bool[1024, 21] cuda:0``.
        name: What it is called, such as ``mask``; ``""`` if no name was found.
        role: What it is, such as ``argument of Step.forward``; ``""`` if it is just a variable.
        events: What happened to it, in the order of time.
        fixes: Possible fixes, best first.
    """

    sentence: str
    tensor: str
    name: str
    role: str
    events: tuple[Event, ...]
    fixes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The tensor in one line: name, description and role."""
        described = f"`{self.name}` ({self.tensor})" if self.name else f"A tensor, {self.tensor}"
        return f"{described}, {self.role}" if self.role else described

    def to_dict(self) -> dict[str, Any]:
        """Return the parts as a dict that JSON can hold."""
        return {
            "sentence": self.sentence,
            "tensor": self.tensor,
            "name": self.name,
            "role": self.role,
            "events": [
                {
                    "kind": event.kind,
                    "text": event.text,
                    "filename": event.where.filename if event.where else "",
                    "lineno": event.where.lineno if event.where else 0,
                    "function": event.where.function if event.where else "",
                    "line": event.where.line if event.where else "",
                }
                for event in self.events
            ],
            "fixes": list(self.fixes),
        }

    def __str__(self) -> str:
        parts = [self.sentence, "", self.title + ":"]
        parts += [_indent(str(event), "  ") for event in self.events]
        if self.fixes:
            parts += ["", "Possible fixes, best first:"]
            parts += [
                f"  {n}. {_indent(fix, '     ').lstrip()}" for n, fix in enumerate(self.fixes, 1)
            ]
        return "\n".join(parts)

    def error(self) -> InplaceError:
        """Return the error that says this and carries it."""
        error = InplaceError(str(self))
        # In its __dict__: survives pickling, and the class stays a plain exception.
        vars(error)[_KEY] = self
        return error


_KEY: Final = "explanation"


def explanation_of(error: BaseException | None) -> Explanation | None:
    """Return the explanation that an error, or one that led to it, carries; None if none does."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found = vars(error).get(_KEY)
        if isinstance(found, Explanation):
            return found
        error = error.__cause__ or error.__context__
    return None


def event(kind: Kind, text: str, place: Place) -> Event:
    """Return an event at a place, with the expression marked where the line holds more."""
    where = location(place)
    at = span(place)
    mark: tuple[int, int] | None = None
    if where is not None and at is not None and at.line == at.end_line == where.lineno:
        raw = _raw(where)
        indent = len(raw) - len(raw.lstrip())
        start = len(raw.encode()[: at.column].decode(errors="replace"))
        end = len(raw.encode()[: at.end_column].decode(errors="replace"))
        if indent <= start < end <= len(raw):
            mark = (start - indent, end - indent)
    return Event(kind, text, where, mark)


def line_event(kind: Kind, text: str, code: CodeType, lineno: int) -> Event:
    """Return an event at a line of a function's file."""
    return Event(kind, text, Location(code.co_filename, lineno, code.co_qualname))


def _raw(where: Location) -> str:
    return linecache.getline(where.filename, where.lineno).rstrip("\n")


def _indent(text: str, by: str) -> str:
    return "\n".join(by + row for row in text.split("\n"))

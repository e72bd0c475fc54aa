"""Explains the writes that PyTorch refuses at once: of leaves, of some views, of inference tensors.

The line is known there. What is missing is whose tensor it is, where it became what it is, and what
to do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from torch import Tensor, nn

from safemodule import _explain_compat as compat
from safemodule._explain_backward import op_of, tensor_text
from safemodule._explain_frames import CALL_MODULE, Place, is_user, location, user_frames
from safemodule._explain_message import Event, Explanation, event, line_event
from safemodule._explain_mode import view_key
from safemodule._explain_names import Models, evaluate, live_name, share
from safemodule._explain_refusals import advice
from safemodule._explain_source import (
    definition_line,
    is_argument,
    last_binding,
    spelling,
    written_expression,
)

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from safemodule._explain_notes import Notes

__all__ = ["explain_refusal"]

_REFUSALS: Final = {
    "view of a leaf": r"^a view of a leaf Variable that requires grad is being used",
    "leaf": r"^a leaf Variable that requires grad is being used",
    "many views": r"function that returns multiple views",
    "function view": r"view was created inside a custom Function",
    "no_grad view": r"^A view was created in (no_grad|inference) mode",
    "inference": r"^Inplace update to inference tensor",
    "inference saved": r"^Inference tensors cannot be saved for backward",
    "overlap": r"more than one element of the written-to tensor refers to a single memory",
    "partial overlap": r"some elements of the input tensor and the written-to tensor refer to",
}


class _Found(NamedTuple):
    tensor: Tensor | None
    """The tensor that was refused, None if it has no name anywhere."""
    name: str
    place: Place
    """The user's innermost line."""
    frames: list[FrameType]
    """The user's frames, innermost first."""


def explain_refusal(
    error: RuntimeError, trace: TracebackType | None, notes: Notes
) -> Explanation | None:
    """Return an explanation of an in-place error of the forward pass, None if it is another one."""
    message = str(error)
    kind = next((k for k, pattern in _REFUSALS.items() if re.search(pattern, message)), None)
    if kind is None or trace is None:
        return None
    with compat.interception_off():
        found = _find(trace, kind)
        tensor = found.tensor
        module = _module(trace)
        models = Models(found.frames, module)
        owner, path, model = models.owner(tensor) if tensor is not None else ("", "", "")
        described = tensor_text(tensor) if tensor is not None else "unknown"
        role = f"{owner} {path} of {model}" if path else _argument(found)
        made = _made(kind, found, notes)
    verb = "cannot be saved for backward" if kind == "inference saved" else "refused here: written"
    how = spelling(found.place)
    here = event(
        "saved" if kind == "inference saved" else "written",
        (f"{verb} by {how}" if how else verb)
        + (f", in module {models.describe(module)}" if module is not None else ""),
        found.place,
    )
    events = (here,) if made is None else (made, here)
    fixes = advice(kind, message, found.name, found.place, is_parameter=owner == "parameter")
    return Explanation(message, described, found.name, role, events, fixes)


def _find(trace: TracebackType, kind: str) -> _Found:
    steps: list[tuple[FrameType, int]] = []
    outer = trace.tb_frame.f_back
    at: TracebackType | None = trace
    while at is not None:
        steps.append((at.tb_frame, at.tb_lasti))
        at = at.tb_next
    steps.reverse()
    mine = [(frame, offset) for frame, offset in steps if is_user(frame)] or steps[:1]
    frames = [frame for frame, _ in mine] + user_frames(outer)
    user, offset = mine[0]
    place = Place(user.f_code, offset)
    if kind == "inference saved":
        tensor, name = _inference_local(user)
        return _Found(tensor, name, place, frames)
    tensor = None
    for frame, step in steps:
        # In torch.nn.functional the written expression is its own variable: `input` of relu_.
        value = evaluate(written_expression(Place(frame.f_code, step)), frame)
        if isinstance(value, Tensor):
            tensor = value
            break
    name = written_expression(place)
    if tensor is not None and not share(evaluate(name, user), tensor):
        name = live_name(tensor, frames)  # the argument of a module is not what the module writes
    return _Found(tensor, name, place, frames)


def _module(trace: TracebackType | None) -> nn.Module | None:
    """Return the module in which a traceback ends."""
    module: nn.Module | None = None
    while trace is not None:
        if trace.tb_frame.f_code is CALL_MODULE:
            module = trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
    return module


def _inference_local(frame: FrameType) -> tuple[Tensor | None, str]:
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, Tensor) and value.is_inference():
            return value, name
    return None, ""


def _argument(found: _Found) -> str:
    """Say that the tensor is an argument, and what its caller calls it."""
    code = found.frames[0].f_code
    root = re.match(r"\w*", found.name)
    if root is not None and is_argument(code, root.group()):
        role = f"argument of {code.co_qualname}"
    else:
        # Another name of an argument: `y = dropout(x)` in evaluation is x.
        local = found.frames[0].f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        name = next(
            (n for n in names if found.tensor is not None and local.get(n) is found.tensor), ""
        )
        if not name:
            return ""
        role = f"the same tensor as argument {name} of {code.co_qualname}"
    if found.tensor is not None:
        whole = found.tensor if found.tensor._base is None else found.tensor._base
        for frame in found.frames[1:]:
            name = live_name(whole, [frame])
            if name:
                return f"{role}, which is {name} in {frame.f_code.co_qualname}"
    return role


def _made(kind: str, found: _Found, notes: Notes) -> Event | None:
    """Return where the tensor became what forbids to write it."""
    tensor = found.tensor
    if tensor is None or isinstance(tensor, nn.Parameter):
        return None
    text = _BECAME[kind]
    if kind in {"many views", "no_grad view"}:
        site = notes.view_site(view_key(tensor, many=kind == "many views"))
        if site is not None:
            op, code, offset = site
            return event("made", f"{text}, by {compat.op_name(op)}", Place(code, offset))
    if kind == "function view":
        return _made_by_function(tensor, text)
    if kind == "overlap":
        repeated = [str(d) for d, s in enumerate(tensor.stride()) if s == 0 and tensor.shape[d] > 1]
        if repeated:  # pragma: no branch -- PyTorch finds no other overlap
            text += f": dimension {', '.join(repeated)} is expanded, all of it is one element"
    sought = tensor
    if kind == "view of a leaf" and tensor._base is not None:
        sought = tensor._base
    return _bound(sought, found, text)


_BECAME: Final = {
    "leaf": "bound to a leaf that requires grad",
    "view of a leaf": "the leaf it is a view of was bound",
    "many views": "became one of several views of one tensor",
    "function view": "became a view that a custom Function returned",
    "no_grad view": "became a view, without gradients",
    "inference": "made under inference_mode()",
    "inference saved": "made under inference_mode()",
    "overlap": "bound to memory that is shared among its elements",
    "partial overlap": "bound to memory that the other operand shares in part",
}


def _made_by_function(tensor: Tensor, text: str) -> Event:
    op, _ = op_of(tensor.grad_fn)
    code = getattr(compat.forward_of(tensor.grad_fn), "__code__", None)
    if op == "BackwardHookFunction":
        return Event(
            "made", f"{text}: the one that torch puts around a module with a full backward hook"
        )
    if code is None:
        return Event("made", f"{text}: {op}")
    return line_event("made", f"{text}: {op}", code, definition_line(code))


def _bound(tensor: Tensor, found: _Found, text: str) -> Event | None:
    """Return the line that bound the tensor to a name: one that says `requires_grad`, if any does.

    Otherwise the one in the outermost function that has it: there it was made.
    """
    best: Event | None = None
    for frame in reversed(found.frames):
        for name, value in list(frame.f_locals.items()):
            if value is not tensor:
                continue
            here = location(found.place) if frame is found.frames[0] else None
            line = here.lineno if here is not None else frame.f_lineno
            at = last_binding(frame.f_code, name, line)
            if at is None:
                continue
            seen = line_event("made", f"{text}, as {name}", frame.f_code, at)
            if seen.where is not None and "requires_grad" in seen.where.line:
                return seen
            best = best or seen
    return best

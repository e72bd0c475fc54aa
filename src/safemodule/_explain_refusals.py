"""Possible fixes for the writes that PyTorch refuses at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from safemodule._explain_source import spelling
from safemodule._fixes import fixes

if TYPE_CHECKING:
    from safemodule._explain_frames import Place

__all__ = ["advice"]


def advice(
    kind: str, message: str, name: str, place: Place, *, is_parameter: bool
) -> tuple[str, ...]:
    """Return possible fixes, best first.

    Args:
        kind: What was refused: ``"leaf"``, ``"many views"``, ...
        message: PyTorch's message.
        name: What the tensor is called.
        place: The line that writes.
        is_parameter: The tensor is a parameter, or a view of one.
    """
    x = name or "x"
    how = spelling(place)
    anew = fixes(_DUNDERS.get(how, how), x, declarable=False)[:3]
    if kind in {"leaf", "view of a leaf"}:
        if is_parameter:
            update = "with torch.no_grad(): around the write, if it sets or updates the parameter"
            return (update, *anew)
        safe = "class Net(SafeModule), or @freeze_inputs on the function: the write goes to a copy"
        return (*anew, safe)
    if kind == "many views":
        return (*anew, "write the tensor that the views belong to, by index: whole[i] = value")
    if kind == "function view":
        if "BackwardHookFunction" in message:
            return (
                "inplace=False in the module that writes",
                "no full backward hook on that module, or on the one before it",
            )
        return (*anew, "return a copy from the custom Function: x.clone() in its forward")
    if kind == "no_grad view":
        return (
            "make the view where gradients are on: take that line out of the no_grad() block",
            "or put the write under no_grad() too, if no gradient is meant to flow",
            *anew,
        )
    if kind in {"inference", "inference saved"}:
        return (
            f"{_local(x)} = {x}.clone() outside of inference_mode(): an ordinary tensor",
            "torch.no_grad() in place of torch.inference_mode() where it is made",
            *(fix for fix in anew if ".clone()" not in fix and kind == "inference"),
        )
    if kind == "overlap":
        return (
            f"{_local(x)} = {x}.clone() before the write: each element gets memory of its own",
            "write before expand(): once for all",
            *(fix for fix in anew if ".clone()" not in fix),
        )
    return (
        f"{_local(x)} = {x}.clone() before the write",
        "clone() the other operand",
        *(fix for fix in anew if ".clone()" not in fix),
    )


def _local(name: str) -> str:
    return name if name.isidentifier() else "x"


_DUNDERS: Final = {
    "+=": "__iadd__",
    "-=": "__isub__",
    "*=": "__imul__",
    "/=": "__itruediv__",
    "//=": "__ifloordiv__",
    "%=": "__imod__",
    "**=": "__ipow__",
    "@=": "__imatmul__",
    "&=": "__iand__",
    "|=": "__ior__",
    "^=": "__ixor__",
    "<<=": "__ilshift__",
    ">>=": "__irshift__",
    "item assignment": "__setitem__",
}

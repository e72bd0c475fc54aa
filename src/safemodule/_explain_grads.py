"""Refuses a custom backward that writes the gradient it was given.

Whoever else receives that gradient would compute with the written values, and nobody would notice.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from safemodule import _explain_compat as compat
from safemodule._explain_backward import tensor_text
from safemodule._explain_frames import Place, caller, user_frames
from safemodule._explain_message import Explanation, event
from safemodule._explain_names import share
from safemodule._explain_source import written_expression
from safemodule._fixes import fixes

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch import Tensor

__all__ = ["refuse_written_gradients"]

_APPLY: Final[CodeType] = inspect.unwrap(compat.FunctionNode.apply).__code__


def refuse_written_gradients(written: list[Tensor]) -> None:
    """Raise if the running custom backward is about to write a gradient that it was given.

    Args:
        written: The tensors about to be written.

    Raises:
        InplaceError: If one of them is such a gradient.
    """
    if not isinstance(compat.current_node(), compat.FunctionNode):
        return
    inner = caller()
    frame: FrameType | None = inner
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    if frame is None:
        return
    for position, gradient in enumerate(frame.f_locals["args"]):
        hit = next((t for t in written if share(gradient, t)), None)
        if hit is not None:
            raise _explain(hit, position, inner, frame).error()


def _explain(
    tensor: Tensor, position: int, inner: FrameType | None, frame: FrameType
) -> Explanation:
    user = user_frames(inner)[0]
    place = Place(user.f_code, user.f_lasti)
    name = written_expression(place) or "grad_output"
    function = type(frame.f_locals["self"]).__name__.removesuffix("Backward")
    advice = fixes("mul_", name, declarable=False)[-1:]
    return Explanation(
        sentence=(
            f"the backward of custom Function {function} writes, in place, the gradient that it was "
            "given: whoever else receives that gradient computes with the written values."
        ),
        tensor=tensor_text(tensor),
        name=name,
        role=f"gradient {position} given to {function}.backward",
        events=(event("written", "about to be written", place),),
        fixes=("compute a new tensor: grad * 2 for grad.mul_(2)", *advice),
    )

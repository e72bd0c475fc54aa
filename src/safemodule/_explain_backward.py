"""Explains a value that backward needs and that was overwritten."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from safemodule import _explain_compat as compat
from safemodule._errors import InplaceError
from safemodule._explain_arguments import saved_by_function, saved_expression
from safemodule._explain_frames import Place, caller, user_frames
from safemodule._explain_hooks import Saved, probing
from safemodule._explain_message import Event, Explanation, event
from safemodule._explain_names import Models, evaluate, live_name, share
from safemodule._explain_source import is_argument, spelling, written_expression
from safemodule._fixes import fixes
from safemodule._record import describe

if TYPE_CHECKING:
    from types import FrameType

    from safemodule._explain_notes import Write

__all__ = ["explain_saved", "overwritten", "tensor_text"]

_WRITES_SHOWN: Final = 6


def overwritten(saved: Saved, frame: FrameType | None) -> Exception | None:
    """Return the error for a saved value that was overwritten.

    Args:
        saved: The value.
        frame: What reads it: the innermost frame, None in a thread of the engine.
    """
    try:
        node = compat.current_node()
        argument, variable = "", None
        # Does the running node read it itself, or hooks of somebody else (a checkpoint) inside it?
        if (
            isinstance(node, compat.FunctionNode)
            or frame is None
            or frame.f_code is compat.RUN_BACKWARD
        ):
            argument, variable = _argument_of(node, saved)
        if argument.startswith("running_") and compat.saved_in_training(node):
            return None  # a batch norm saves what it then updates, and in training uses neither
        sentence = _sentence(saved, variable)
        writes = saved.log.since(saved.moment) if saved.log is not None else []
        return explain_saved(saved, node, argument, sentence, frame, writes).error()
    except Exception as failure:  # noqa: BLE001  a failed search for words must not hide the error
        error = InplaceError(_sentence(saved, None))
        error.add_note(f"safemodule could not say more: {failure!r}")
        return error


def tensor_text(tensor: Tensor) -> str:
    """Return a tensor in words, such as ``bool[1024, 21] cuda:0``."""
    with compat.interception_off():
        dtype = str(tensor.dtype).removeprefix("torch.")
        return describe(tuple(tensor.shape), dtype, str(tensor.device))


def explain_saved(
    saved: Saved,
    node: Any,
    argument: str,
    sentence: str,
    frame: FrameType | None,
    writes: list[Write],
) -> Explanation:
    """Explain a saved value that was overwritten.

    Args:
        saved: The value.
        node: The node that saved it, None if that is not known.
        argument: Which of the node's values it is, in PyTorch's words; ``""`` if not known.
        sentence: PyTorch's message.
        frame: The innermost frame of the failing backward.
        writes: What wrote it since.
    """
    # A node that does not hold the value is not who saved it: backward may read it for another.
    op, is_function = op_of(node if argument else None)
    saver = _saved_name(saved, node, op, argument, is_function=is_function)
    frames = user_frames(frame)
    module = saved.module() if saved.module is not None else None
    models = Models(frames, module)
    kind, path, model = models.owner(saved.tensor)
    writer = next(filter(None, (written_expression(_place(w)) for w in writes)), "")
    name = path or _checked(saver, saved, frames) or writer or live_name(saved.tensor, frames)
    role = f"{kind} of {model}" if path else ""
    if not role and saved.code is not None and is_argument(saved.code, name):
        role = f"argument of {saved.code.co_qualname}"
    now = compat.version_of(saved.tensor)
    text = _saved_text(saved, op, argument, saver)
    if module is not None:
        text += f", in module {models.describe(module)}"
    if saved.code is None:
        text += ": before the explain() block began, or where its hooks do not reach"
    events = [event("saved", text, saved.place)]
    events += _write_events(saved, writes, now)
    advice = _advice(saved, writes, name, saver, argument, role)
    return Explanation(sentence, tensor_text(saved.tensor), name, role, tuple(events), advice)


def op_of(node: Any) -> tuple[str, bool]:
    """Return the op whose backward a node is, and whether it is a custom Function."""
    if node is None:
        return "", False
    name = re.sub(r"Backward\d*$", "", node.name())
    if isinstance(node, compat.FunctionNode):
        return name, True
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("::")[2]).lower(), False


def _argument_of(node: Any, saved: Saved) -> tuple[str, Any]:
    """Return which of a node's saved values one is, in PyTorch's words, and the value as read."""
    if node is None or probing.found is not None:
        return "", None
    for name in compat.saved_attributes(node):
        probing.found = []
        probing.frame = caller(0)
        try:
            value = getattr(node, name)
            hits = [n for n, found in enumerate(probing.found) if found is saved]
        except Exception:  # noqa: BLE001, S112  released, or a reader of the user's own that fails
            continue
        finally:
            probing.found = probing.frame = None
        if hits and isinstance(value, Tensor):
            return compat.saved_name(name), value
        if hits:
            same = [n for n, item in enumerate(value) if _is(item, saved.tensor)]
            position = same[0] if same else hits[0]
            return f"{compat.saved_name(name)}[{position}]", value[position]
    return "", None


def _is(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.data_ptr() == tensor.data_ptr()


def _sentence(saved: Saved, variable: Any) -> str:
    """Return PyTorch's own message, so that whoever looks for it finds it."""
    tensor = saved.tensor
    shape = ", ".join(map(str, tensor.shape))
    producer = ""
    grad_fn = getattr(variable, "grad_fn", None)
    if grad_fn is not None:
        made_by = re.sub(r"Backward\d*$", "", grad_fn.name())
        producer = f", which is output {variable.output_nr} of {made_by},"
    now = compat.version_of(tensor)
    if now == saved.version:
        return (
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{_type_text(tensor)} [{shape}]]{producer} is at version {now} as expected,"
            " yet its values differ: the write was not counted."
        )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{_type_text(tensor)} [{shape}]]{producer} is at version {now}; "
        f"expected version {saved.version} instead."
    )


def _type_text(tensor: Tensor) -> str:
    """Return a type as PyTorch's message has it: ``torch.FloatTensor``, but ``CPUBoolType``."""
    kind = tensor.type() if tensor.layout is torch.strided else ""
    bare = kind.rpartition(".")[2].removesuffix("Tensor")
    if bare in {"Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte"}:
        return kind
    return f"{tensor.device.type.upper()}{bare or 'Unknown'}Type"


def _place(write: Write) -> Place:
    return Place(write.code, write.offset)


def _saved_name(saved: Saved, node: Any, op: str, argument: str, *, is_function: bool) -> str:
    position = re.search(r"\[(\d+)\]$", argument)
    if is_function:
        forward = compat.forward_of(node)
        return saved_by_function(forward, int(position.group(1))) if position else ""
    return saved_expression(saved.place, op, re.sub(r"\[\d+\]$", "", argument))


def _checked(name: str, saved: Saved, frames: list[FrameType]) -> str:
    """Return the name that a variable of the saving function shows to be right, if it still runs.

    One that is bound to something else by now proves nothing; one that holds the tensor does.
    """
    for frame in frames:
        if frame.f_code is saved.code and not share(evaluate(name, frame), saved.tensor):
            return live_name(saved.tensor, [frame]) or name
    return name


def _saved_text(saved: Saved, op: str, argument: str, saver: str) -> str:
    text = f"saved for backward at version {saved.version}"
    if op:
        text += f" by {op}"
    if argument.startswith("result"):
        return f"{text}, as its result"
    if argument.startswith("saved_tensors"):
        return f"{text}, a custom Function, as {saver or argument}"
    return f"{text}, as its argument {argument}" if argument else text


def _write_events(saved: Saved, writes: list[Write], now: int) -> list[Event]:
    changes = now - saved.version
    if not writes:
        if changes:
            text = (
                f"written {_times(changes)} since, where no operation was seen: outside of the "
                "explain() block, or by compiled code"
            )
        else:
            text = (
                "written since by something that is no PyTorch operation: an array of numpy that "
                "shares the memory, or a kernel that got its address"
            )
        return [Event("written", text)]
    events = [_write_event(saved, w, changes, alone=len(writes) == 1) for w in writes]
    hidden = len(events) - _WRITES_SHOWN + (saved.log.dropped if saved.log is not None else 0)
    if hidden > 0:
        # The first and the last are what one looks for.
        middle = Event("written", f"and written at {hidden} more places")
        events = [*events[: _WRITES_SHOWN - 1], middle, events[-1]]
    return events


def _write_event(saved: Saved, write: Write, changes: int, *, alone: bool) -> Event:
    op = write_op(write)
    text = f"written by {op}"
    if write.step:
        text += f" in {write.step}"
    if write.last is None:
        text += f", {_times(write.count)}, not counted by a version"
    else:
        whole = write.first_tick > saved.moment  # all of its writes came after the save
        count = write.count if whole else changes if alone else 0
        if count == 1:
            text += f", to version {write.last}"
        elif count > 1:
            first = write.first if whole else saved.version + 1
            text += f", {_times(count)}: versions {first} to {write.last}"
        else:
            text += f", for the last time to version {write.last}"
    return event("written", text, _place(write))


def write_op(write: Write) -> str:
    """Return what wrote, in PyTorch's words, and in the user's where they differ."""
    op = compat.op_name(write.op)
    spelled = spelling(_place(write))
    return f"{spelled} ({op})" if spelled == "item assignment" or spelled.endswith("=") else op


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _advice(
    saved: Saved, writes: list[Write], name: str, saver: str, argument: str, role: str
) -> tuple[str, ...]:
    step = next((w.step for w in writes if w.step), "")
    if step:
        return (
            f"call every backward() that needs the old weights before {step}",
            "after the step, compute the loss again from the inputs: a new graph has the new weights",
            "if no gradient has to reach these weights, detach() what they computed",
        )
    found: list[str] = []
    if role.startswith("buffer"):
        found.append(f"rebind the buffer: self.{name.rpartition('.')[2]} = new value")
    last = writes[-1] if writes else None
    written = (written_expression(_place(last)) if last else "") or saver or name or "x"
    if last is not None:
        setitem = spelling(_place(last)) == "item assignment"
        op = "__setitem__" if setitem else compat.op_name(last.op)
        found += fixes(op, written, declarable=False)[:3]
    what = saver or ("it" if role.startswith(("parameter", "buffer")) else name or written)
    if argument and not argument.startswith("result"):
        found.append(f"save a copy: {what}.clone() in place of {what} where it is saved")
    owner = role.removeprefix("argument of ").rpartition(".forward")[0]
    if owner and last is not None and last.code is not saved.code:
        found.append(f"class {owner}(SafeModule, snapshot=True): it saves a copy of its own")
    elif owner:
        found.append(f"class {owner}(SafeModule): the write goes to a copy, if one is needed")
    else:
        variable = what if what.isidentifier() else "x"
        found.append(f"{variable} = freeze({what}) before it is saved: the write goes to a copy")
    return tuple(dict.fromkeys(found))

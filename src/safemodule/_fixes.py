"""Advice: how to say the same without writing an argument, derived from the op that wrote."""

from __future__ import annotations

import re
from typing import Final

import torch

__all__ = ["fixes"]

_OPERATORS: Final = {
    "add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*", "div": "/",
    "divide": "/", "true_divide": "/", "truediv": "/", "floor_divide": "//", "floordiv": "//",
    "pow": "**", "remainder": "%", "mod": "%", "matmul": "@", "bitwise_and": "&", "and": "&",
    "bitwise_or": "|", "or": "|", "bitwise_xor": "^", "xor": "^", "bitwise_left_shift": "<<",
    "lshift": "<<", "bitwise_right_shift": ">>", "rshift": ">>",
}  # fmt: skip

# {x}: the argument. {y}: a local name for the new value. Tried before the general rule, by name
# without the trailing underscore.
_SPECIAL: Final = {
    "copy": "{y} = value.to({x}).expand_as({x})",
    "fill": "{y} = torch.full_like({x}, value)",
    "zero": "{y} = torch.zeros_like({x})",
    "normal": "{y} = torch.randn_like({x}) * std + mean",
    "uniform": "{y} = torch.rand_like({x})",
    "random": "{y} = torch.randint_like({x}, low, high)",
    "bernoulli": "{y} = torch.empty_like({x}).bernoulli_(p)",
    "cauchy": "{y} = torch.empty_like({x}).cauchy_(...)",
    "exponential": "{y} = torch.empty_like({x}).exponential_(...)",
    "geometric": "{y} = torch.empty_like({x}).geometric_(...)",
    "log_normal": "{y} = torch.empty_like({x}).log_normal_(...)",
    "set": "{y} = other",
    "resize": "{y} = {x}.new_empty(shape)",
    "resize_as": "{y} = torch.empty_like(other)",
    "data": "{y} = value, where it says {x}.data = value",
    "real": "{y} = torch.complex(value, {x}.imag)",
    "imag": "{y} = torch.complex({x}.real, value)",
}

_SETITEM: Final = (
    "{y} = torch.where(condition, value, {x})",
    "{y} = {x}.masked_fill(condition, value)",
    "{y} = {x}.index_put((indices,), value)",
)

_CLONE: Final = "{y} = {x}.clone() before the write"

# {c}: the container. {d}: a local name for the new one. {k}: the key.
_CONTAINER: Final = {
    "__setitem__": ("{d} = {{**{c}, {k}: value}}",),
    "setdefault": ("{d} = {{{k}: value, **{c}}}",),
    "update": ("{d} = {{**{c}, **other}}",),
    "__ior__": ("{d} = {{**{c}, **other}}",),
    "pop": (
        "read {c}[{k}] and leave it in",
        "{d} = {{key: item for key, item in {c}.items() if key != {k}}}",
    ),
    "__delitem__": ("{d} = {{key: item for key, item in {c}.items() if key != {k}}}",),
    "append": ("{d} = [*{c}, value]",),
    "extend": ("{d} = [*{c}, *values]",),
    "__iadd__": ("{d} = [*{c}, *values]",),
    "__imul__": ("{d} = {c} * n",),
    "insert": ("{d} = [*{c}[:i], value, *{c}[i:]]",),
    "sort": ("{d} = sorted({c})",),
    "reverse": ("{d} = {c}[::-1]",),
    "__setattr__": ("{d} = dataclasses.replace({c}, {k}=value)",),
}
_LIST_OPS: Final = frozenset({"append", "extend", "__iadd__", "__imul__", "insert", "remove", "sort",
                              "reverse"})  # fmt: skip

_NAMESPACED: Final = re.compile(r"(?:torch\.ops\.)?(?:\w+::|aten\.|prims\.)(\w+)")
_TAIL: Final = re.compile(r"\[(?P<item>[^\[\]]*)\]$|\.(?P<field>\w+)$")


def fixes(
    op: str, argument: str, kind: str = "tensor", *, declarable: bool = True
) -> tuple[str, ...]:
    """Return possible fixes for a write, best first.

    Args:
        op: What wrote: ``"add_"``, ``"__setitem__"``, ``"relu (inplace=True)"``, ...; an unknown
            one gets general advice.
        argument: Path or name of what was written, such as ``"batch['mask']"``.
        kind: ``"tensor"``; ``"container"`` for an entry of a caller's container; ``"unseen"`` for
            a write that happened past the interception.
        declarable: Whether it is an argument of a guarded call, so that declaring it as mutable
            and ``mode="copy"`` would help.

    Example:
        >>> fixes("add_", "x", declarable=False)
        ('x = x + ...', 'x = x.clone() before the write')
    """
    # A tensor without a name has a description, such as "<frozen at line 7>".
    named = re.match(r"[^\W\d]", argument) is not None
    x = argument if named else "x"
    if kind == "unseen":
        found = [f"{x}.clone() for the code that writes it"]
    elif kind == "container":
        found = _of_container(op, x)
    else:
        found = _of_tensor(op, x)
    if declarable:
        declaring = _of_declaring(x, kind)
        found += declaring if named else declaring[1:]  # only a parameter can be declared
    return tuple(found)


def _of_declaring(x: str, kind: str) -> list[str]:
    root = re.match(r"\w*", x)
    name = root.group() if root and root.group() else x
    what = "container" if kind == "container" else "tensor"
    hint = "..." if kind == "container" or name != x else "Tensor"
    declare = f'if the caller is meant to see it, {name}: Mutable[{hint}], or mutable=("{name}",)'
    if kind == "unseen":  # no mode can send the write elsewhere
        return [declare]
    return [declare, f'mode="copy": the write goes to a copy, the caller\'s {what} stays as it is']


def _of_tensor(op: str, x: str) -> list[str]:
    templates = [*_templates(op), _CLONE]
    if _short(op) == "__setitem__":  # the clone is the shortest change, so the best
        templates.insert(0, templates.pop())
    y = _local(x)
    return [template.format(x=x, y=y) for template in templates]


def _templates(op: str) -> tuple[str, ...]:
    name = _short(op)
    if "inplace" in op:
        return (f"inplace=False in {name.removesuffix('_')}",)
    if "out=" in op or name.endswith("_out"):
        return (f"without out=: {{y}} = torch.{name.removesuffix('_').removesuffix('_out')}(...)",)
    if "max_norm" in op or "embedding" in op:
        return ("without max_norm: {y} = torch.renorm({x}, p=2, dim=0, maxnorm=...)",)
    if "batch_norm" in op or "instance_norm" in op or op.startswith("running_"):
        return ("training=False, if the running statistics are not meant to change",)
    if name == "__setitem__":
        return _SETITEM
    dunder = re.fullmatch(r"__i(\w+)__", name)
    base = dunder.group(1) if dunder else name.removesuffix("_")
    if base in _OPERATORS and (dunder or name.endswith("_")):
        return (f"{{y}} = {{x}} {_OPERATORS[base]} ...",)
    if base in _SPECIAL:
        return (_SPECIAL[base],)
    if name.endswith("_") and not base.startswith("_"):
        if callable(getattr(torch.Tensor, base, None)):
            return (f"{{y}} = {{x}}.{base}(...)",)
        if callable(getattr(torch.nn.functional, base, None)):
            return (f"{{y}} = torch.nn.functional.{base}({{x}}, ...)",)
    return ()


def _short(op: str) -> str:
    """Return the bare name: ``add_`` of ``aten::add_.Tensor``, ``Tensor.add_`` and ``add_ (x)``."""
    namespaced = _NAMESPACED.match(op)
    if namespaced:
        return namespaced.group(1)
    parts = re.split(r"[\s(=]", op.strip(), maxsplit=1)[0].strip(".").split(".")
    if len(parts) > 1 and parts[-1] == "__set__":
        parts.pop()
    return parts[-1]


def _of_container(op: str, x: str) -> list[str]:
    name = _short(op)
    container, key, is_field = x, "key", False
    tail = _TAIL.search(x)
    if tail and name in {"__setitem__", "__delitem__", "pop", "setdefault"} and tail.group("item"):
        container, key = x[: tail.start()], tail.group("item")
    elif tail and tail.group("field") and name in {"__setattr__", "__delattr__"}:
        container, key, is_field = x[: tail.start()], tail.group("field"), True
    is_list = name in _LIST_OPS or re.fullmatch(r"-?\d+|.*:.*", key) is not None
    local = _local(container)
    if is_field or name == "__setattr__":
        copying = f"{local} = copy.copy({container}) before the change"
    else:
        copying = f"{local} = {'list' if is_list else 'dict'}({container}) before the change"
    if is_list and name not in _LIST_OPS:  # an item of a list: no spelling beats the copy
        return [copying]
    templates = _CONTAINER.get(name, ())
    return [t.format(c=container, d=local, k=key) for t in templates] + [copying]


def _local(path: str) -> str:
    """Return a name for the new value: assigning to ``batch['mask']`` would write the caller's."""
    if path.isidentifier():
        return path
    tail = _TAIL.search(path)
    if tail:
        name = tail.group("field") or (tail.group("item") or "").strip("'\"")
        if name.isidentifier():
            return name
    return "x"

"""`guard()`: protect a model that somebody else wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.jit import ScriptModule
from torch.nn import Module

from safemodule._decorator import check_names
from safemodule._guard_everywhere import GuardEverywhere
from safemodule._guard_model import GuardModel
from safemodule._modes import check_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from safemodule._guard_base import Guard
    from safemodule._modes import Mode

__all__ = ["guard"]


def guard(
    model: Module | None = None,
    *,
    mode: Mode | None = None,
    mutable: Iterable[str] = (),
    submodules: bool = True,
) -> Guard:
    """Protect the inputs of a model that somebody else wrote.

    Every call of ``forward``, also a direct one, gets copy-on-write inputs, as a `SafeModule` does.
    It holds from now on, until `Guard.remove` or the end of the ``with`` block. Classes, types,
    parameters and ``state_dict`` stay as they are. A module that is safe already (`SafeModule`,
    `freeze_inputs`) keeps what it declares, and a scripted one is left alone.

    A copy of a guarded model (`copy.deepcopy`, a replica of ``DataParallel``) is guarded too, until
    the guard is removed. One that was pickled and loaded is plain. Submodules that are added later
    as attributes, or by a method such as ``append``, are guarded. A ``forward`` assigned to an instance
    later, or a bound one kept from before, is not.

    Args:
        model: The model. Default: every module that is called, in every thread, also one that is
            made later, but for graphs of `torch.fx`; for this use a ``with`` block.
        mode: ``"copy"``, ``"warn"``, ``"strict"`` or ``"off"``. Default: what `set_mode` or the
            environment variable ``SAFEMODULE_MODE`` says, else ``"copy"``.
        mutable: Names of parameters that may be written, wherever a guarded ``forward`` has them.
        submodules: Guard every submodule too, not only the model itself.

    Returns:
        The guard, a context manager.

    Raises:
        TypeError: If ``model`` is no module, or a scripted one.
        ValueError: If ``mode`` is no mode, or if no guarded ``forward`` has a parameter that
            ``mutable`` names.

    Example:
        >>> import torch
        >>> from safemodule import guard, record
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> relu, x = model[1], torch.tensor([-1.0, 1.0])
        >>> with guard(model), record() as log:
        ...     relu(x)
        tensor([0., 1.])
        >>> x
        tensor([-1.,  1.])
        >>> print(log[0].module, log[0].argument)
        torch.nn.modules.activation.ReLU input
    """
    declared = None if mode is None else check_mode(mode)
    names = check_names(mutable)
    if model is None:
        return GuardEverywhere(declared, names)
    if isinstance(model, ScriptModule):
        raise TypeError("guard() takes a module that runs in Python, and this one is scripted")
    if not isinstance(model, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"guard() takes a module, not {type(model).__name__}")
    return GuardModel(declared, names, model, submodules=submodules)


guard.__module__ = "safemodule"

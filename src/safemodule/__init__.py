"""Copy-on-write inputs for PyTorch modules.

As if every input had been cloned on entry, except that nothing is copied unless it is written.
"""

from __future__ import annotations

from safemodule import _outside
from safemodule._decorator import freeze_inputs
from safemodule._errors import InplaceError, InputMutationError, InputMutationWarning
from safemodule._explain import explain
from safemodule._freeze import freeze
from safemodule._guard import guard
from safemodule._guard_base import Guard as Guard  # for annotations only: not in __all__
from safemodule._modes import get_mode, mode, set_mode
from safemodule._module import SafeModule
from safemodule._mutable import Mutable
from safemodule._record import Mutation, MutationLog, record
from safemodule._version import __version__

__all__ = [
    "InplaceError",
    "InputMutationError",
    "InputMutationWarning",
    "Mutable",
    "Mutation",
    "MutationLog",
    "SafeModule",
    "__version__",
    "explain",
    "freeze",
    "freeze_inputs",
    "get_mode",
    "guard",
    "mode",
    "record",
    "set_mode",
]

for _public in (SafeModule, freeze_inputs, freeze):
    _public.__module__ = "safemodule"

_outside.install()

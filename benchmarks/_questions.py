"""The questions the suite answers; each returns a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._calls import call_cost, inputs_cost
from benchmarks._launches import kernel_launches
from benchmarks._memory import peak_memory, written_inputs, written_slice
from benchmarks._ops import op_cost
from benchmarks._whole import debug_tools, mask_loop, whole_models

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._table import Setting, Table

QUESTIONS: dict[str, Callable[[Setting], Table]] = {
    "call": call_cost,
    "inputs": inputs_cost,
    "ops": op_cost,
    "written": written_inputs,
    "slice": written_slice,
    "peak": peak_memory,
    "launches": kernel_launches,
    "loop": mask_loop,
    "models": whole_models,
    "debug": debug_tools,
}

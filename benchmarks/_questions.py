"""The questions the suite answers, one function each. Each returns a `Table`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks import _measure as measure
from benchmarks._models import MODELS
from benchmarks._variants import classes
from safemodule import explain, freeze, freeze_inputs, guard

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Table:
    """One table: rows of figures, and what to draw of it."""

    name: str
    title: str
    unit: str
    columns: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    x: str = ""
    """Name of the column on the x axis of the plot; empty: bars."""

    def to_dict(self) -> dict[str, Any]:
        return self.__dict__.copy()


@dataclass(frozen=True)
class Setting:
    """How thorough, and where."""

    device: torch.device
    quick: bool

    @property
    def seconds(self) -> float:
        return 0.1 if self.quick else 0.5

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 15

    def times(self, cases: dict[str, measure.Case]) -> dict[str, measure.Time]:
        return measure.times(cases, seconds=self.seconds, rounds=self.rounds)


def _returns_constant(result: Tensor) -> Callable[..., Tensor]:
    def forward(self: nn.Module, *args: Any) -> Tensor:
        del self, args
        return result

    return forward


def call_cost(setting: Setting) -> Table:
    """Fixed cost of a call that writes nothing, by tensor size."""
    table = Table(
        "call",
        "Added time of a call that writes nothing, by size of its one input",
        "us over plain",
        ["elements", "gradient"],
        x="elements",
        note="Best of the rounds, minus the plain module's. Every variant gets the same tensor.",
    )
    sizes = [8, 2**10, 2**16] if setting.quick else [8, 2**10, 2**14, 2**18, 2**22, 2**24, 2**26]
    modules = classes(_returns_constant(torch.zeros(1, device=setting.device)))
    for grad in (False, True):
        for size in sizes:
            measure.progress(f"call: {size} elements, gradient {grad}")
            x = torch.zeros(size, device=setting.device, requires_grad=grad)
            names = [n for n in modules if not (grad and n == "copy.deepcopy" and size > 2**22)]
            found = setting.times({n: _call(modules[n], x) for n in names})
            base = found["plain"].best
            row: dict[str, Any] = {"elements": size, "gradient": grad}
            row |= {n: (t.best - base) * 1e6 for n, t in found.items() if n != "plain"}
            row["plain"] = base * 1e6
            table.rows.append(row)
    table.columns += [n for n in modules if n != "plain"]
    return table


def _call(module: Any, *args: Any) -> measure.Case:
    return lambda: module(*args)


def inputs_cost(setting: Setting) -> Table:
    """Fixed cost by number and nesting of inputs."""
    table = Table(
        "inputs",
        "Added time of a call that writes nothing, by number and nesting of its inputs (8 elements)",
        "us over plain",
        ["inputs"],
    )
    modules = classes(_returns_constant(torch.zeros(1, device=setting.device)))
    names = ["x = x.clone() by hand", "copy.deepcopy", "SafeModule", "SafeModule off"]

    def make() -> Tensor:
        return torch.zeros(8, device=setting.device)

    shapes: dict[str, tuple[Any, ...]] = {
        "1 tensor": (make(),),
        "2 tensors": (make(), make()),
        "4 tensors": tuple(make() for _ in range(4)),
        "16 tensors": tuple(make() for _ in range(16)),
        "dict of 4": ({str(i): make() for i in range(4)},),
        "list of 16": ([make() for _ in range(16)],),
        "dict of 4 lists of 4": ({str(i): [make() for _ in range(4)] for i in range(4)},),
    }
    for name, args in shapes.items():
        measure.progress(f"inputs: {name}")
        found = setting.times({n: _call(modules[n], *args) for n in ("plain", *names)})
        base = found["plain"].best
        table.rows.append({"inputs": name} | {n: (found[n].best - base) * 1e6 for n in names})
    table.columns += names
    return table


class Empty(Tensor):
    """The floor of interception: a `__torch_function__` that returns at once."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del func, types, args, kwargs


def op_cost(setting: Setting) -> Table:
    """Cost of one operation on a frozen input."""
    table = Table(
        "ops",
        "Time of one operation on a frozen input (8 elements)",
        "us",
        ["operation", "plain", "frozen", "added", "empty __torch_function__", "ratio"],
        note="`empty` is a `__torch_function__` that returns at once: the floor of any interception. "
        "`ratio` is added over empty.",
    )
    x = torch.rand(8, device=setting.device) + 0.5
    square = torch.rand(4, 4, device=setting.device)
    operations: dict[str, tuple[Tensor, Callable[[Any], Any]]] = {
        "x + x": (x, lambda t: t + t),
        "x * 2.0": (x, lambda t: t * 2.0),
        "torch.sin(x)": (x, torch.sin),
        "x.sum()": (x, lambda t: t.sum()),
        "F.relu(x)": (x, nn.functional.relu),
        "m @ m": (square, lambda t: t @ t),
        "x.shape": (x, lambda t: t.shape),
        "x.size(0)": (x, lambda t: t.size(0)),
        "x[0]": (x, lambda t: t[0]),
        "m.t()": (square, lambda t: t.t()),
        "x.view(2, 4)": (x, lambda t: t.view(2, 4)),
    }
    for name, (tensor, run) in operations.items():
        measure.progress(f"ops: {name}")
        empty = tensor.detach()
        empty.__class__ = Empty
        frozen = freeze(tensor)
        found = setting.times(
            {
                "plain": lambda run=run, t=tensor: run(t),
                "empty": lambda run=run, t=empty: run(t),
                "frozen": lambda run=run, t=frozen: run(t),
            }
        )
        plain, bare, held = (found[n].best * 1e6 for n in ("plain", "empty", "frozen"))
        table.rows.append(
            {
                "operation": name,
                "plain": plain,
                "frozen": held,
                "added": held - plain,
                "empty __torch_function__": bare,
                "ratio": (held - plain) / bare,
            }
        )
    written, own = freeze(x), x.clone()
    written.add_(1)
    found = setting.times({"plain": lambda: own.add_(1), "frozen": lambda: written.add_(1)})
    plain, held = found["plain"].best * 1e6, found["frozen"].best * 1e6
    table.rows.append(
        {"operation": "x.add_(1), again", "plain": plain, "frozen": held, "added": held - plain}
    )
    return table


def written_inputs(setting: Setting) -> Table:
    """Extra bytes when k of n inputs are written."""
    count = 8
    size = 2**16 if setting.quick else 2**20
    table = Table(
        "written",
        f"Extra bytes when k of {count} inputs of {size * 4 // 2**10} KiB are written",
        "MiB over a call that writes nothing in a plain module",
        ["written", "of the k inputs"],
        note="On a CPU the bytes that operators allocate, on CUDA the peak.",
        x="written",
    )

    def forward(self: Any, *xs: Tensor) -> Tensor:
        for x in xs[: self.k]:
            x.mul_(1.0)
        return xs[0]

    modules = classes(forward)
    names = [n for n in modules if n not in ("SafeModule strict", "SafeModule off", "plain")]
    for k in (0, 1, 2, 4, 8):
        row: dict[str, Any] = {"written": k, "of the k inputs": k * size * 4 / 2**20}
        for name in ("plain", *names):
            modules[name].k = k
        xs = [torch.ones(size, device=setting.device) for _ in range(count)]
        base = measure.allocated(_call(modules["plain"], *xs), setting.device)
        for name in names:
            extra = measure.allocated(_call(modules[name], *xs), setting.device) - base
            row[name] = extra / 2**20
        table.rows.append(row)
    table.columns += names
    return table


def written_slice(setting: Setting) -> Table:
    """Extra bytes when the written input is a slice of a large storage."""
    large = torch.ones(2**22, device=setting.device)
    table = Table(
        "slice",
        "Extra bytes when a written input is a slice of a storage of 16 MiB",
        "KiB over plain",
        ["slice"],
    )

    def forward(self: Any, x: Tensor) -> Tensor:
        del self
        return x.mul_(1.0)

    modules = classes(forward)
    names = [n for n in modules if n not in ("SafeModule strict", "SafeModule off", "plain")]
    table.columns += names
    for size in (2**8, 2**12, 2**16):
        row: dict[str, Any] = {"slice": f"{size * 4 // 2**10} KiB"}
        base = measure.allocated(_call(modules["plain"], large[:size]), setting.device)
        for name in names:
            extra = measure.allocated(_call(modules[name], large[:size]), setting.device) - base
            row[name] = extra / 2**10
        table.rows.append(row)
    return table


def mask_loop(setting: Setting) -> Table:
    """A loop that writes a mask and reads it T times, with gradients."""
    table = Table(
        "loop",
        "T turns of: read a mask [1024, 21] in masked_fill, write one entry per row; then backward",
        "ms",
        ["turns"],
        x="turns",
        note="A plain module fails at backward; by hand the mask is cloned in each turn.",
    )
    scores = torch.randn(1024, 21, device=setting.device, requires_grad=True)
    rows = torch.arange(1024, device=setting.device)

    def run(mask: Tensor, turns: int, *, clone: bool) -> Tensor:
        total = scores.new_zeros(())
        for turn in range(turns):
            total = total + scores.masked_fill(mask, 0.0).square().sum()
            if clone:
                mask = mask.clone()
            mask[rows, turn % 21] = True
        return total

    guarded = freeze_inputs(run)
    for turns in (1, 5, 20) if setting.quick else (1, 5, 20, 50, 139):
        measure.progress(f"loop: {turns} turns")
        mask = torch.zeros(1024, 21, dtype=torch.bool, device=setting.device)
        cases: dict[str, measure.Case] = {
            "mask cloned by hand": lambda t=turns, m=mask: run(m, t, clone=True).backward(),
            "SafeModule": lambda t=turns, m=mask: guarded(m, t, clone=False).backward(),
        }
        allowed = torch.autograd.graph.allow_mutation_on_saved_tensors

        def mutable(t: int = turns, m: Tensor = mask) -> None:
            with allowed():
                run(m.clone(), t, clone=False).backward()

        cases["allow_mutation_on_saved_tensors"] = mutable
        found = setting.times(cases)
        table.rows.append({"turns": turns} | {n: t.best * 1e3 for n, t in found.items()})
    table.columns += list(cases)
    return table


def whole_models(setting: Setting) -> Table:
    """Whole models: train step and inference, ratios to plain."""
    from safemodule import SafeModule

    table = Table(
        "models",
        "Whole models: time over the plain model's",
        "ratio",
        ["model", "pass", "plain ms", "inputs cloned by hand", "SafeModule on top", "guard, all"],
        note="SafeModule on top: the outermost module guarded. guard, all: every submodule guarded, "
        "as `guard(model)` does.",
    )
    for name, build in MODELS.items():
        torch.manual_seed(0)
        made: dict[str, nn.Module] = {}
        for variant, base in (("plain", nn.Module), ("safe", SafeModule), ("all", nn.Module)):
            module, inputs = build(base)
            made[variant] = module.to(setting.device)
        moved = tuple(x.to(setting.device) for x in inputs)
        guarding = guard(made["all"])
        for training in (True, False):
            measure.progress(f"models: {name}, {'train step' if training else 'inference'}")

            def step(variant: str, *, clone: bool = False, training: bool = training) -> None:
                given = tuple(x.clone() for x in moved) if clone else moved
                if training:
                    made[variant](*given).sum().backward()
                else:
                    with torch.no_grad():
                        made[variant](*given)

            found = setting.times(
                {
                    "plain": lambda: step("plain"),
                    "hand": lambda: step("plain", clone=True),
                    "safe": lambda: step("safe"),
                    "all": lambda: step("all"),
                }
            )
            base_time = found["plain"].best
            table.rows.append(
                {
                    "model": name,
                    "pass": "train step" if training else "inference",
                    "plain ms": base_time * 1e3,
                    "inputs cloned by hand": found["hand"].best / base_time,
                    "SafeModule on top": found["safe"].best / base_time,
                    "guard, all": found["all"].best / base_time,
                }
            )
        guarding.remove()
    return table


def debug_tools(setting: Setting) -> Table:
    """The tools that look for a guilty line, beside each other."""
    table = Table(
        "debug",
        "Tools that look for a guilty line: one training step, time over plain",
        "ratio",
        ["model", "plain ms", "explain()", "set_detect_anomaly", "allow_mutation_on_saved_tensors"],
    )
    for name, build in MODELS.items():
        measure.progress(f"debug: {name}")
        torch.manual_seed(0)
        module, inputs = build(nn.Module)
        module = module.to(setting.device)
        moved = tuple(x.to(setting.device) for x in inputs)

        def step(module: nn.Module = module, moved: tuple[Tensor, ...] = moved) -> None:
            module(*moved).sum().backward()

        def within(block: Callable[[], Any], step: Callable[[], None] = step) -> measure.Case:
            def run() -> None:
                with block():
                    step()

            return run

        found = setting.times(
            {
                "plain": step,
                "explain()": within(explain),
                "set_detect_anomaly": within(
                    lambda: torch.autograd.set_detect_anomaly(mode=True, check_nan=True)
                ),
                "allow_mutation_on_saved_tensors": within(
                    torch.autograd.graph.allow_mutation_on_saved_tensors
                ),
            }
        )
        base = found["plain"].best
        row: dict[str, Any] = {"model": name, "plain ms": base * 1e3}
        row |= {n: t.best / base for n, t in found.items() if n != "plain"}
        table.rows.append(row)
    return table


QUESTIONS: dict[str, Callable[[Setting], Table]] = {
    "call": call_cost,
    "inputs": inputs_cost,
    "ops": op_cost,
    "written": written_inputs,
    "slice": written_slice,
    "loop": mask_loop,
    "models": whole_models,
    "debug": debug_tools,
}

"""Whole programs: a loop over a mask, models, and the tools that look for a guilty line."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks import _measure as measure
from benchmarks._floors import floor_of
from benchmarks._models import MODELS
from benchmarks._table import Setting, Table
from benchmarks._variants import BASES, COPIES, HAND, copier
from safemodule import explain, freeze_inputs, guard

if TYPE_CHECKING:
    from collections.abc import Callable

ALLOW = "allow_mutation_on_saved_tensors"


def mask_loop(setting: Setting) -> Table:
    """A loop that writes a mask and reads it T times, with gradients."""
    variants = ["mask cloned by hand", "SafeModule", ALLOW]
    table = Table(
        "loop",
        "T turns of: read a mask [1024, 21] in masked_fill, write one entry per row; then backward",
        "ms",
        ["turns", *variants],
        x="turns",
        note="A plain module fails at backward; by hand the mask is cloned in each turn.",
        drawn=variants,
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

        def mutable(t: int = turns, m: Tensor = mask) -> None:
            with torch.autograd.graph.allow_mutation_on_saved_tensors():
                run(m.clone(), t, clone=False).backward()

        found = setting.turns(
            {
                "mask cloned by hand": lambda t=turns, m=mask: run(m, t, clone=True).backward(),
                "SafeModule": lambda t=turns, m=mask: guarded(m, t, clone=False).backward(),
                ALLOW: mutable,
            }
        )
        row = table.add(turns=turns)
        row |= {name: found.time(name, 1e3) for name in variants}
    return table


def _own_classes(module: nn.Module) -> nn.Module:
    """Give a model classes of its own: a guard changes classes, for their other modules too."""
    made: dict[type, type] = {}
    for part in module.modules():
        cls = type(part)
        if cls.__module__.startswith("torch.") and cls.forward is not nn.Module.forward:
            if cls not in made:
                made[cls] = type(cls.__name__, (cls,), {"forward": cls.forward})
            part.__class__ = made[cls]
    return module


def _every(
    build: Callable[[type[nn.Module]], Any], device: torch.device
) -> tuple[dict[str, nn.Module], tuple[Tensor, ...]]:
    """Return a model in each variant, all with the very same parameters, and inputs."""
    torch.manual_seed(0)
    plain, inputs = build(nn.Module)
    _own_classes(plain).to(device)

    def again(base: type[nn.Module]) -> nn.Module:
        module = _own_classes(build(base)[0])
        # Where a parameter lies in memory changes what a model costs by more than a guard does.
        module.load_state_dict(plain.state_dict(keep_vars=True), assign=True)
        return module.to(device)

    made = {name: again(base) for name, base in BASES.items() if name != "plain"}
    made["guard()"] = again(nn.Module)
    guard(made["guard()"])
    made["floor"] = floor_of(again(nn.Module))
    made["floor, all"] = floor_of(again(nn.Module), submodules=True)
    return {"plain": plain} | made, tuple(x.to(device) for x in inputs)


def whole_models(setting: Setting) -> Table:
    """Whole models: train step and inference, ratios to plain."""
    variants = [*COPIES, *(name for name in BASES if name != "plain"), "guard()"]
    table = Table(
        "models",
        "Whole models: time over the plain model's",
        "ratio",
        ["model", "pass", "plain ms", *variants, "floor", "floor, all"],
        note="SafeModule: the outermost module guarded. `guard()`: every submodule guarded. The floors "
        "are the cheapest wrapper around the same forwards. All share their parameters. In brackets "
        "the 95 % interval of the median.",
        drawn=[HAND, "SafeModule", "SafeModule snapshot", "guard()", "floor, all"],
        intervals=True,
    )
    for name, build in MODELS.items():
        made, inputs = _every(build, setting.device)
        copiers = {variant: copier(variant) for variant in COPIES}
        for training in (True, False):
            measure.progress(f"models: {name}, {'train step' if training else 'inference'}")

            def step(variant: str, *, training: bool = training) -> None:
                given = inputs
                if variant in copiers:
                    given = tuple([copiers[variant](x) for x in inputs])
                module = made.get(variant, made["plain"])
                with nullcontext() if training else torch.no_grad():
                    out = module(*given)
                    if training:
                        out.sum().backward()

            cases = {v: lambda v=v: step(v) for v in ("plain", *variants, "floor", "floor, all")}
            found = setting.turns(cases, seconds=2.0, rounds=45)
            row = table.add(model=name)
            row |= {"pass": "train step" if training else "inference"}
            row |= {"plain ms": found.time("plain", 1e3).value}
            row |= {v: found.ratio(v) for v in cases if v != "plain"}
    return table


def debug_tools(setting: Setting) -> Table:
    """The tools that look for a guilty line, beside each other."""
    anomaly = torch.autograd.set_detect_anomaly
    blocks: dict[str, Callable[[], Any]] = {
        "explain()": explain,
        "set_detect_anomaly": lambda: anomaly(mode=True, check_nan=True),
        ALLOW: torch.autograd.graph.allow_mutation_on_saved_tensors,
    }
    table = Table(
        "debug",
        "Tools that look for a guilty line: one training step, time over plain",
        "ratio",
        ["model", "plain ms", *blocks, "explain() / set_detect_anomaly"],
        drawn=list(blocks),
        note=f"`{ALLOW}` makes in-place errors go away rather than explaining them.",
        intervals=True,
    )
    for name, build in MODELS.items():
        measure.progress(f"debug: {name}")
        torch.manual_seed(0)
        module, inputs = build(nn.Module)
        module.to(setting.device)
        inputs = tuple(x.to(setting.device) for x in inputs)

        def step(block: Callable[[], Any]) -> None:
            with block():
                module(*inputs).sum().backward()

        cases: dict[str, measure.Case] = {
            tool: lambda block=block: step(block) for tool, block in blocks.items()
        }
        found = setting.turns({"plain": lambda: step(nullcontext)} | cases, seconds=1.5)
        row = table.add(model=name)
        row |= {"plain ms": found.time("plain", 1e3).value}
        row |= {tool: found.ratio(tool) for tool in blocks}
        row["explain() / set_detect_anomaly"] = found.ratio("explain()", "set_detect_anomaly")
    return table

"""The demo: a pointer network that marks visited customers in place, and cannot be trained.

A decoder builds tours for random travelling-salesman instances, one customer a step. Each step hides
the visited customers with `masked_fill` and then marks its choice in the same mask, in place. But
autograd saved that mask for backward. Three acts: plain modules fail; the same classes as
`SafeModule`s train; the log shows the guilty line. A table at the end measures what it cost.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from safemodule import MutationLog, SafeModule, record

if TYPE_CHECKING:
    from collections.abc import Generator

CUSTOMERS = 21
BATCH = 1024
ROLLOUTS = 16  # tours per instance: their mean length is the baseline of REINFORCE
WIDTH = 32


def build(base: type[nn.Module], *, by_hand: bool = False) -> nn.Module:
    """Return the decoder.

    Args:
        base: What its classes derive from: `nn.Module` or `SafeModule`.
        by_hand: Clone the mask before each write, as one would repair it by hand.
    """

    class Step(base):  # type: ignore[misc, valid-type]
        """Choose the next customer, and mark it as visited."""

        def __init__(self) -> None:
            super().__init__()
            self.near = nn.Parameter(torch.tensor(0.0))

        def forward(
            self, keys: Tensor, query: Tensor, distance: Tensor, mask: Tensor, greedy: bool
        ) -> tuple[Tensor, Tensor, Tensor]:
            scores = (keys @ query[:, :, None]).squeeze(-1) / WIDTH**0.5
            scores = 10 * torch.tanh(scores - self.near * distance)
            logp = scores.masked_fill(mask, -torch.inf).log_softmax(-1)
            choice = logp.argmax(-1) if greedy else logp.exp().multinomial(1).squeeze(-1)
            if by_hand:
                mask = mask.clone()
            mask.scatter_(1, choice[:, None], True)  # the guilty line: autograd saved this mask
            return choice, logp.gather(1, choice[:, None]).squeeze(1), mask

    class Decoder(base):  # type: ignore[misc, valid-type]
        """Build one tour per instance, customer by customer."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            self.key = nn.Linear(WIDTH, WIDTH, bias=False)
            self.query = nn.Linear(3 * WIDTH, WIDTH)
            self.start = nn.Parameter(torch.zeros(WIDTH))
            self.step = Step()

        def forward(self, cities: Tensor, greedy: bool = False) -> tuple[Tensor, Tensor]:
            nodes = self.embed(cities)
            keys, graph = self.key(nodes), nodes.mean(1)

            def pick(x: Tensor, choice: Tensor) -> Tensor:
                return x.gather(1, choice[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)

            mask = torch.zeros(cities.shape[:2], dtype=torch.bool)
            first = last = self.start.expand(len(cities), WIDTH)
            distance = torch.zeros(cities.shape[:2])
            tour, total = [], torch.zeros(len(cities))
            for _ in range(cities.shape[1]):
                query = self.query(torch.cat((graph, first, last), -1))
                choice, logp, mask = self.step(keys, query, distance, mask, greedy)
                last = pick(nodes, choice)
                first = last if not tour else first
                distance = (cities - pick(cities, choice)[:, None]).norm(dim=-1)
                tour.append(choice)
                total = total + logp
            path = cities.gather(1, torch.stack(tour, 1)[:, :, None].expand(-1, -1, 2))
            return (path - path.roll(1, 1)).norm(dim=-1).sum(1), total

    return Decoder()


def loss_of(decoder: nn.Module, cities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the REINFORCE loss of one batch and the mean tour length."""
    length, logp = decoder(cities.repeat_interleave(ROLLOUTS, 0))
    per_instance = length.detach().view(-1, ROLLOUTS)
    advantage = (per_instance - per_instance.mean(1, keepdim=True)).flatten()
    return (advantage * logp).mean(), per_instance.mean()


def act_one() -> None:
    """Plain modules: PyTorch refuses the backward pass."""
    print("1. Plain nn.Module: one training step")
    torch.manual_seed(0)
    loss, _ = loss_of(build(nn.Module), torch.rand(BATCH // ROLLOUTS, CUSTOMERS, 2))
    try:
        loss.backward()
    except RuntimeError as error:
        print(f"   loss.backward() fails:\n   RuntimeError: {error}\n")
    else:
        raise SystemExit("the demo is out of date: plain PyTorch did not fail")


def act_two(steps: int) -> MutationLog:
    """Train the same classes as SafeModules. Returns the log of what wrote its inputs."""
    print("2. The same classes as SafeModule: training with REINFORCE")
    torch.manual_seed(0)
    decoder = build(SafeModule)
    optimiser = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    begin, lengths = time.perf_counter(), []
    with record() as log:
        for step in range(1, steps + 1):
            loss, length = loss_of(decoder, torch.rand(BATCH // ROLLOUTS, CUSTOMERS, 2))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            lengths.append(length.item())
            if sys.stdout.isatty() or step in (1, steps) or step % 10 == 0:
                spent = time.perf_counter() - begin
                line = f"   step {step:3d} of {steps}  {spent:4.0f} s  tour {lengths[-1]:.2f}"
                print(line, end="\r" if sys.stdout.isatty() and step < steps else "\n", flush=True)
    print(f"   mean tour length: {lengths[0]:.2f} -> {lengths[-1]:.2f}\n")
    if lengths[-1] >= lengths[0]:
        raise SystemExit("the tours did not get shorter")
    return log


def act_three(log: MutationLog) -> None:
    """Show the guilty line."""
    print("3. What wrote an input of a module, and where")
    print("\n".join("   " + line for line in str(log).splitlines()) + "\n")


@contextlib.contextmanager
def quiet_stderr() -> Generator[None]:
    """Hide what torch's profiler prints about itself, past Python."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def table() -> None:
    """Measure time and memory of one training step against cloning by hand."""
    cities = torch.rand(BATCH // ROLLOUTS, CUSTOMERS, 2)
    plain, safe = build(nn.Module), build(SafeModule)
    hand = build(nn.Module, by_hand=True)
    for decoder in (safe, hand):
        decoder.load_state_dict(plain.state_dict())

    def run(decoder: nn.Module, *, backward: bool = True) -> None:
        torch.manual_seed(1)
        loss, _ = loss_of(decoder, cities)
        if backward:
            loss.backward()

    def allocated(decoder: nn.Module) -> int:
        profiler = torch.autograd.profiler.profile(profile_memory=True, use_kineto=False)
        with quiet_stderr(), profiler:
            run(decoder, backward=False)
        return sum(max(0, event.self_cpu_memory_usage) for event in profiler.function_events or ())

    print(f"4. Cost of one training step (batch {BATCH}, {CUSTOMERS} customers), measured now")
    print(f"   {'':<36}{'forward + backward':>20}{'allocated over plain':>24}")
    names = {
        "plain (fails at backward)": plain,
        "SafeModule": safe,
        "mask cloned by hand before writing": hand,
    }
    base = allocated(plain)
    times: dict[str, float] = dict.fromkeys(names, float("inf"))
    for _ in range(4):  # interleaved: these machines are noisy
        for name, decoder in names.items():
            if decoder is not plain:
                begin = time.perf_counter()
                run(decoder)
                times[name] = min(times[name], time.perf_counter() - begin)
    for name, decoder in names.items():
        spent = "-" if decoder is plain else f"{times[name] * 1e3:.0f} ms"
        extra = (allocated(decoder) - base) / 2**20
        print(f"   {name:<36}{spent:>20}{extra:>20.2f} MiB")


def main(argv: list[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="safemodule demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="training steps (default: 30)")
    options = parser.parse_args(argv)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("   log: %(levelname)s %(message)s"))
    logger = logging.getLogger("safemodule")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        act_one()
        log = act_two(options.steps)
        act_three(log)
        table()
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
    return 0

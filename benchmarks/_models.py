"""Whole models, each built on the base class it is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Build = Callable[[type[nn.Module]], tuple[nn.Module, tuple[Tensor, ...]]]


def mlp(base: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three hidden layers of 512, batch 256."""

    class MLP(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            widths = (256, 512, 512, 512, 64)
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers[:-1]:
                x = layer(x).relu()
            return self.layers[-1](x)

    return MLP(), (torch.randn(256, 256),)


def conv_net(base: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Residual blocks with in-place activations, batch 8 of 3x32x32."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(width, width, 3, padding=1)
            self.second = nn.Conv2d(width, width, 3, padding=1)
            self.norm = nn.BatchNorm2d(width)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.norm(self.second(self.relu(self.first(x)))) + x)

    class ConvNet(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 3, padding=1)
            self.blocks = nn.Sequential(*[Block(32) for _ in range(4)])
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    return ConvNet(), (torch.randn(8, 3, 32, 32),)


def transformer(base: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four encoder blocks of width 128, batch 8 of 64 tokens, written with plain operators."""

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.act = nn.GELU()

        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Transformer(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(128, 4) for _ in range(4))
            self.norm = nn.LayerNorm(128)

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return self.norm(x).mean(1)

    return Transformer(), (torch.randn(8, 64, 128),)


def pointer_decoder(base: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A pointer network that masks visited cities out of place, 16 steps, batch 128."""

    class Decoder(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(2, 64)
            self.cell = nn.GRUCell(64, 64)
            self.key = nn.Linear(64, 64)

        def forward(self, cities: Tensor) -> Tensor:
            nodes = self.embed(cities)
            keys, state = self.key(nodes), nodes.mean(1)
            mask = torch.zeros(cities.shape[:2], dtype=torch.bool, device=cities.device)
            total = cities.new_zeros(len(cities))
            for _ in range(cities.shape[1]):
                scores = torch.einsum("bnd,bd->bn", keys, state).masked_fill(mask, -1e9)
                best, choice = scores.log_softmax(-1).max(-1)
                total = total + best
                mask = mask.scatter(1, choice[:, None], value=True)
                chosen = nodes.gather(1, choice[:, None, None].expand(-1, 1, 64)).squeeze(1)
                state = self.cell(chosen, state)
            return total

    return Decoder(), (torch.rand(128, 16, 2),)


MODELS: dict[str, Any] = {
    "MLP": mlp,
    "conv net": conv_net,
    "transformer": transformer,
    "pointer network": pointer_decoder,
}

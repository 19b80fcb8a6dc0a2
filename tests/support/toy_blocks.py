"""A target and a draft over few tokens, small enough that every block and every outcome can be enumerated."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Toy:
    """Distributions float64 [V] after each prefix of drafted tokens; blocks of `gamma` drafts."""

    vocab: int
    gamma: int
    target: dict[Prefix, Any]
    draft: dict[Prefix, Any]

    @property
    def blocks(self) -> list[Prefix]:
        return list(product(range(self.vocab), repeat=self.gamma))

    def rows(self, table: dict[Prefix, Any], block: Prefix, count: int) -> Any:
        """[count, V]: the distributions that a block meets."""
        return torch.stack([table[block[:index]] for index in range(count)])

    def batch(self, blocks: list[Prefix]) -> tuple[Any, Any, Any]:
        """(target [n, g + 1, V], draft [n, g, V], tokens int64 [n, g]) of blocks."""
        target = torch.stack([self.rows(self.target, block, self.gamma + 1) for block in blocks])
        draft = torch.stack([self.rows(self.draft, block, self.gamma) for block in blocks])
        return target, draft, torch.tensor(blocks, dtype=torch.int64)

    def joint(self) -> Any:
        """[V] * (g + 1): the target's distribution of the next g + 1 tokens."""
        out = torch.zeros((self.vocab,) * (self.gamma + 1), dtype=torch.float64)
        for block in self.blocks:
            mass = 1.0
            for index, token in enumerate(block):
                mass = mass * self.target[block[:index]][token]
            out[block] = mass * self.target[block]
        return out

    def chance(self, block: Prefix) -> float:
        """Probability that the draft proposes `block`."""
        mass = 1.0
        for index, token in enumerate(block):
            mass *= float(self.draft[block[:index]][token])
        return mass


def toy(seed: int, vocab: int = 3, gamma: int = 3, holes: bool = False) -> Toy:
    """Random distributions; with `holes` some tokens of the target and of the draft have none, as after top-k."""
    generator = torch.Generator().manual_seed(seed)

    def row() -> Any:
        values = torch.rand(vocab, generator=generator, dtype=torch.float64) ** 3 + 0.01
        if holes:
            values[int(torch.randint(vocab, (1,), generator=generator))] = 0
        return values / values.sum()

    prefixes = [prefix for length in range(gamma + 1) for prefix in product(range(vocab), repeat=length)]
    return Toy(vocab, gamma, {prefix: row() for prefix in prefixes}, {prefix: row() for prefix in prefixes})


def outcome(model: Toy, live: Callable[[Prefix], int], chances: Any, corrections: Any) -> Any:
    """[V] * (g + 1): the exact distribution of g + 1 tokens when a block is accepted by `chances` and `corrections`
    and what is missing then is the target's own. `live` gives the drafts of a block that count."""
    out = torch.zeros((model.vocab,) * (model.gamma + 1), dtype=torch.float64)
    blocks = model.blocks
    target, draft, tokens = model.batch(blocks)
    lives = torch.tensor([live(block) for block in blocks])
    found = chances(target, draft, tokens, lives)
    for count in range(model.gamma + 1):
        tau = torch.full((len(blocks),), count)
        mass = corrections(target, draft, found.weights, tau, lives)
        mass = mass / mass.sum(1, keepdim=True)
        for number, block in enumerate(blocks):
            if count > lives[number]:
                continue
            kept = found.kept[number]
            chance = model.chance(block) * (1.0 if count == 0 else float(kept[count - 1]))
            for later in kept[count : lives[number]]:
                chance *= 1 - float(later)
            for token in range(model.vocab):
                _spread(out, model, (*block[:count], token), chance * float(mass[number, token]))
    return out


def _spread(out: Any, model: Toy, prefix: Prefix, mass: float) -> None:
    """Complete a prefix by the target."""
    if mass == 0:
        return
    if len(prefix) == model.gamma + 1:
        out[prefix] += mass
        return
    for token in range(model.vocab):
        _spread(out, model, (*prefix, token), mass * float(model.target[prefix][token]))

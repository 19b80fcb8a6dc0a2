"""Many requests alike with a draft each, over few tokens: what the engine's acceptance makes of them is countable."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from engine_modules import DSPARK, module
from scipy import stats

VOCAB, GAMMA, ROWS = 4, 3, 60_000
TEMPERATURE = 0.7


def table(seed: int, length: int) -> Any:
    """Logits float32 [V ** length, V] after each prefix of `length` drafts."""
    generator = torch.Generator().manual_seed(seed * 10 + length)
    return torch.randn((VOCAB**length, VOCAB), generator=generator) * 1.5


def filtered(probabilities: Any, top_k: int, top_p: float) -> Any:
    """Top-k first, then the fewest of the likeliest tokens that reach top_p together."""
    values, order = probabilities.sort(1, descending=True)
    values[:, top_k:] = 0
    values = values / values.sum(1, keepdim=True)
    values[(values.cumsum(1) - values) > top_p] = 0
    out = torch.zeros_like(probabilities).scatter(1, order, values)
    return out / out.sum(1, keepdim=True)


class Rows:
    """ROWS requests alike, greedy or sampled, each with a draft of its own."""

    def __init__(self, kind: str, sampler: Any = None) -> None:
        """`sampler`: the engine's own, whose staged temperatures the drafts are drawn at; None: the target's."""
        self.greedy = kind == "greedy"
        self.top_k = {"greedy": 1, "top-k": 2, "both": 3}.get(kind, VOCAB)
        self.top_p = {"top-p": 0.8, "both": 0.7}.get(kind, 1.0)
        self.temperature = 1.0 if self.greedy else TEMPERATURE
        self.logits = [table(8, length) for length in range(GAMMA + 1)]
        self.proposal = [table(9, length) for length in range(GAMMA)]
        self.target = [self._target(logits) for logits in self.logits]
        self.drafted_at = torch.full((ROWS,), self.temperature)
        if sampler is not None:
            sampler.stage_sampling_params(bs=ROWS, sampling_info=self.info())
            self.drafted_at = getattr(sampler, "params", sampler).temperatures[:ROWS].clone()
        self.drafts, self.codes = self._draft()

    def _target(self, logits: Any) -> Any:
        probabilities = (logits.double() / self.temperature).softmax(1)
        if self.greedy:
            return torch.nn.functional.one_hot(logits.argmax(1), VOCAB).double()
        return filtered(probabilities, self.top_k, self.top_p)

    def _draft(self) -> tuple[Any, list[Any]]:
        code = torch.zeros(ROWS, dtype=torch.int64)
        codes, drafts = [code], []
        for logits in self.proposal:
            chance = (logits[code] / self.drafted_at[:, None]).softmax(1)
            token = chance.argmax(1) if self.greedy else torch.multinomial(chance, 1)[:, 0]
            drafts.append(token)
            code = code * VOCAB + token
            codes.append(code)
        return torch.stack(drafts, 1), codes

    def info(self) -> Any:
        """What the engine knows of the sampling of these rows."""
        return SimpleNamespace(
            temperatures=torch.full((ROWS, 1), self.temperature),
            top_ks=torch.full((ROWS,), self.top_k),
            is_all_greedy=self.greedy,
        )

    def target_logits(self) -> Any:
        return torch.stack([logits[code] for logits, code in zip(self.logits, self.codes, strict=True)], 1)

    def draft_logits(self) -> Any:
        return torch.stack([logits[code] for logits, code in zip(self.proposal, self.codes, strict=False)], 1)

    def p_value(self, kept: Any, token: Any) -> float:
        """Of the first g + 1 tokens, those that were not committed drawn from the target, against it."""
        code = torch.zeros(ROWS, dtype=torch.int64)
        for length in range(GAMMA + 1):
            more = torch.multinomial(self.target[length][code], 1)[:, 0]
            draft = self.drafts[:, min(length, GAMMA - 1)]
            following = torch.where(kept > length, draft, torch.where(kept == length, token, more))
            code = code * VOCAB + following
        counts = torch.bincount(code, minlength=VOCAB ** (GAMMA + 1)).double()
        wanted = torch.ones((1,), dtype=torch.float64)
        for target in self.target:
            wanted = (wanted[:, None] * target).reshape(-1)
        wanted = wanted * ROWS
        assert float(counts[wanted == 0].sum()) == 0, "a token that the target never gives"
        if self.greedy:
            return 1.0
        common = wanted >= 5
        seen = torch.cat([counts[common], counts[~common].sum()[None]])
        expected = torch.cat([wanted[common], wanted[~common].sum()[None]])
        used = expected > 1e-9
        statistic = float(((seen - expected)[used] ** 2 / expected[used]).sum())
        return float(stats.chi2.sf(statistic, int(used.sum()) - 1))


def accepted(verify: ModuleType, rows: list[Rows], cut: Callable[[Rows], Any] | None = None) -> list[tuple[Any, Any]]:
    """(kept, token) of each kind of row, of one batch that holds them all."""

    def each(give: Callable[[Rows], Any]) -> Any:
        return torch.cat([give(group) for group in rows])

    def same(value: float, dtype: Any) -> Any:
        return torch.full((ROWS,), value, dtype=dtype)

    info = SimpleNamespace(
        temperatures=each(lambda group: same(group.temperature, torch.float32))[:, None],
        top_ks=each(lambda group: same(group.top_k, torch.int64)),
        top_ps=each(lambda group: same(group.top_p, torch.float32)),
        need_top_k_sampling=any(group.top_k < VOCAB for group in rows),
        need_top_p_sampling=any(group.top_p < 1 for group in rows),
        is_all_greedy=all(group.greedy for group in rows),
        is_any_greedy=any(group.greedy for group in rows),
    )
    logits = each(Rows.target_logits)
    lens = None if cut is None else each(cut)
    if lens is not None:  # what a dead row holds must not matter
        logits[torch.arange(GAMMA + 1) >= lens[:, None]] = float("nan")
    drafts = each(lambda group: group.drafts)
    block = module(f"{DSPARK}.dspark_draft").DraftBlockResult(
        draft_tokens=drafts,
        corrected_logits=each(Rows.draft_logits),
        greedy_mask=each(lambda group: same(group.greedy, torch.bool)),
        temperatures=each(lambda group: group.drafted_at),
    )
    kept, token, trim = verify.accept_draft_tokens(
        candidates=torch.cat([torch.zeros((len(drafts), 1), dtype=torch.int64), drafts], 1),
        target_logits=logits.reshape(-1, VOCAB),
        draft_block=block,
        sampling_info=info,
        draft_input=SimpleNamespace(max_top_k=None, uniform_top_k_value=None),
        gamma=GAMMA,
        verify_num_draft_tokens=GAMMA + 1,
        cutoff_layout=None if lens is None else SimpleNamespace(verify_lens=lens),
    )
    assert int(trim.min()) >= 0
    return [(kept[start : start + ROWS], token[start : start + ROWS]) for start in range(0, len(drafts), ROWS)]

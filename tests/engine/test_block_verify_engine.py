"""Joint acceptance through the engine's own accept_draft_tokens: what comes out is distributed as the target."""

from collections.abc import Callable
from inspect import Parameter, Signature
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_modules import ACCEPT, DSPARK, keep, module

from trispark_adapters import block_verify
from trispark_hooks.registry import HookError

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
stats: Any = pytest.importorskip("scipy.stats", reason="scipy is not installed")

VOCAB, GAMMA, ROWS = 4, 3, 60_000
TEMPERATURE = 0.7


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    accept = module(ACCEPT)
    if block_verify.native(accept):
        pytest.skip("this release has block verification itself")
    keep(monkeypatch, accept, "AcceptSampling.execute")
    block_verify.install(accept)
    return module(f"{DSPARK}.dspark_verify")


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

    def __init__(self, kind: str) -> None:
        self.greedy = kind == "greedy"
        self.top_k = {"greedy": 1, "top-k": 2, "both": 3}.get(kind, VOCAB)
        self.top_p = {"top-p": 0.8, "both": 0.7}.get(kind, 1.0)
        self.temperature = 1.0 if self.greedy else TEMPERATURE
        self.logits = [table(8, length) for length in range(GAMMA + 1)]
        self.proposal = [table(9, length) for length in range(GAMMA)]
        self.target = [self._target(logits) for logits in self.logits]
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
            chance = (logits / self.temperature).softmax(1)[code]
            token = chance.argmax(1) if self.greedy else torch.multinomial(chance, 1)[:, 0]
            drafts.append(token)
            code = code * VOCAB + token
            codes.append(code)
        return torch.stack(drafts, 1), codes

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


def accepted(verify: ModuleType, rows: list[Rows], cut: Callable[[Rows], Any] | None) -> list[tuple[Any, Any]]:
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
        temperatures=info.temperatures[:, 0],
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


def by_first_draft(rows: Rows) -> Any:
    """A stopping rule: after token 0 or 1 no further draft is verified."""
    return torch.where(rows.drafts[:, 0] < 2, 2, GAMMA)


KINDS = [["sampled"], ["greedy"], ["top-k"], ["top-p"], ["both"], ["greedy", "sampled", "top-k", "top-p", "both"]]


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
@pytest.mark.parametrize("cut", [None, by_first_draft], ids=["whole", "cut"])
def test_the_output_is_the_targets(accepting: ModuleType, kinds: list[str], cut: Callable[[Rows], Any] | None) -> None:
    torch.manual_seed(11)
    rows = [Rows(kind) for kind in kinds]
    for group, (kept, token) in zip(rows, accepted(accepting, rows, cut), strict=True):
        assert group.p_value(kept, token) > 1e-4
        if cut is not None:
            assert bool((kept <= cut(group) - 1).all())
            assert group.greedy or bool((kept == cut(group) - 1).any())


def plain_residual(original: Any) -> Any:
    return lambda target, draft, weights, tau, live: original(target, draft, torch.ones_like(weights), tau, live)


def last_draft_everywhere(original: Any) -> Any:
    rule = module("trispark_adapters.block_verify_math")

    def chances(*given: Any) -> Any:
        found = original(*given)
        return rule.Chances(found.weights, found.weights[:, 1:])

    return chances


@pytest.mark.parametrize(("name", "fault"), [("corrections", plain_residual), ("chances", last_draft_everywhere)])
def test_a_planted_fault_is_seen(
    accepting: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[[Any], Any]
) -> None:
    rule = module("trispark_adapters.block_verify_math")
    monkeypatch.setattr(rule, name, fault(getattr(rule, name)))
    torch.manual_seed(11)
    rows = [Rows("sampled")]
    ((kept, token),) = accepted(accepting, rows, None)
    assert rows[0].p_value(kept, token) < 1e-6


def test_what_it_returns(accepting: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [Rows("sampled")]
    ((kept, token),) = accepted(accepting, rows, None)
    assert kept.dtype == torch.int32
    assert token.dtype == torch.int64
    said = capfd.readouterr().out
    assert "[block_verify] sampled blocks=1\n" in said
    assert "state=active" in said


def test_it_is_installed_once_and_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    accept = module(ACCEPT)
    keep(monkeypatch, accept, "AcceptSampling.execute")
    before = accept.AcceptSampling.__dict__["execute"]
    block_verify.install(accept)
    after = accept.AcceptSampling.__dict__["execute"]
    block_verify.install(accept)
    said = capfd.readouterr().out
    assert accept.AcceptSampling.__dict__["execute"] is after
    if block_verify.native(accept):
        assert after is before
        assert "state=refused" in said
        assert "armed" not in said
    else:
        assert isinstance(after, classmethod)
        assert "[block_verify] armed: joint acceptance" in said


def test_a_further_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = module(ACCEPT)
    if block_verify.native(accept):
        pytest.skip("this release has block verification itself")
    keep(monkeypatch, accept, "AcceptSampling.execute")
    names = [*block_verify.PARAMETERS, "novelty"]

    def later() -> None: ...

    later.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])  # type: ignore[attr-defined]
    monkeypatch.setattr(accept.AcceptSampling, "torch", staticmethod(later))
    with pytest.raises(HookError, match=r"TS-ADAPTER-SIGNATURE.*novelty"):
        block_verify.install(accept)

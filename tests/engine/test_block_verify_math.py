"""The joint rule against exact enumeration: every block, every outcome, no draw."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from toy_blocks import Prefix, Toy, outcome, toy  # noqa: E402

from trispark_adapters import block_verify_math as rule  # noqa: E402

WHOLE: Callable[[Toy], Callable[[Prefix], int]] = lambda model: lambda block: model.gamma  # noqa: E731


def by_prefix(model: Toy) -> Callable[[Prefix], int]:
    """A stopping rule: after a draft of token 0 no further draft counts."""
    return lambda block: next((index + 1 for index, token in enumerate(block) if token == 0), model.gamma)


CUTS = {
    "whole": WHOLE,
    "one": lambda model: lambda block: 1,
    "two": lambda model: lambda block: 2,
    "none": lambda model: lambda block: 0,
    "by prefix": by_prefix,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("holes", [False, True])
def test_the_output_is_the_targets(cut: str, holes: bool) -> None:
    for seed in range(3):
        model = toy(seed, holes=holes)
        found = outcome(model, CUTS[cut](model), rule.chances, rule.corrections)
        torch.testing.assert_close(found, model.joint(), rtol=0, atol=1e-12)


def wrong_chance(target, draft, tokens, live):
    """A planted fault: a draft is kept by its weight alone, as if each were the block's last."""
    found = rule.chances(target, draft, tokens, live)
    return rule.Chances(found.weights, found.weights[:, 1:])


def wrong_weight(target, draft, tokens, live):
    """A planted fault: weights forget those before them."""
    found = rule.chances(target, draft, tokens, live)
    p = target[:, :-1].gather(2, tokens[..., None])[..., 0]
    q = draft.gather(2, tokens[..., None])[..., 0]
    weights = found.weights.clone()
    weights[:, 1:] = (p / q.clamp(min=1e-12)).clamp(max=1)
    return rule.Chances(weights, found.kept)


def wrong_residual(target, draft, weights, tau, live):
    """A planted fault: the residual of the token-by-token rule."""
    return rule.corrections(target, draft, torch.ones_like(weights), tau, live)


def deaf_to_the_cut(target, draft, weights, tau, live):
    """A planted fault: the token after the last live draft is taken from a residual, not from the target."""
    return rule.corrections(target, draft, weights, tau, torch.full_like(live, draft.shape[1]))


@pytest.mark.parametrize(
    ("chances", "corrections", "cut"),
    [
        (wrong_chance, rule.corrections, "whole"),
        (wrong_weight, rule.corrections, "whole"),
        (rule.chances, wrong_residual, "whole"),
        (rule.chances, deaf_to_the_cut, "two"),
    ],
)
def test_a_planted_fault_is_seen(chances, corrections, cut: str) -> None:
    model = toy(1)
    found = outcome(model, CUTS[cut](model), chances, corrections)
    assert float((found - model.joint()).abs().max()) > 1e-3


def test_a_cut_that_looks_at_its_own_draft_is_no_stopping_rule() -> None:
    model = toy(1)
    found = outcome(model, lambda block: 1 if block[1] == 0 else model.gamma, rule.chances, rule.corrections)
    assert float((found - model.joint()).abs().max()) > 1e-3


def test_more_is_kept_than_token_by_token() -> None:
    for seed in range(3):
        model = toy(seed)
        target, draft, tokens = model.batch(model.blocks)
        weight = torch.tensor([model.chance(block) for block in model.blocks], dtype=torch.float64)
        kept = rule.chances(target, draft, tokens, torch.full((len(tokens),), model.gamma)).kept
        joint = sum(1 - (1 - kept[:, index:]).prod(1) for index in range(model.gamma))  # sum of P(tau > index)
        single = (target[:, :-1] / draft).clamp(max=1).gather(2, tokens[..., None])[..., 0].cumprod(1).sum(1)
        assert float((weight * joint).sum()) > float((weight * single).sum())


def test_equal_distributions_keep_everything() -> None:
    model = toy(0)
    target, _, tokens = model.batch(model.blocks)
    kept = rule.chances(target, target[:, :-1], tokens, torch.full((len(tokens),), model.gamma)).kept
    assert bool((kept == 1).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5, 2.0, 0.0])
def test_a_draft_that_its_own_distribution_denies_is_never_kept(bad: float) -> None:
    target = torch.full((1, 3, 4), 0.25)
    draft = torch.full((1, 2, 4), 0.25)
    draft[0, 0, 2] = bad
    tokens, live, uniforms = torch.tensor([[2, 1]]), torch.tensor([2]), torch.tensor([[0.0, 0.0, 0.5]])
    kept, token = rule.accept(target, draft, tokens, live, uniforms)
    assert kept.tolist() == [0]
    assert 0 <= int(token) < 4


def test_the_longest_success_counts() -> None:
    kept = torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    uniforms = torch.tensor([[0.9, 0.0, 0.4], [0.4, 0.0, 0.5], [0.999999, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert rule.longest(kept, uniforms).tolist() == [3, 1, 1, 0]


def test_a_draw_never_gives_what_has_no_mass() -> None:
    mass = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).expand(5, 5)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.9999, 1.0])
    assert rule.draw(mass, uniforms).tolist() == [1, 1, 3, 3, 3]


@pytest.mark.parametrize(("lens", "live"), [(None, [5, 5, 5]), ([1, 3, 6], [0, 2, 5]), ([0, 1 << 20, 2], [0, 5, 1])])
def test_live_drafts(lens: list[int] | None, live: list[int]) -> None:
    given = None if lens is None else torch.tensor(lens)
    assert rule.live_drafts(given, 3, 5, "cpu").tolist() == live

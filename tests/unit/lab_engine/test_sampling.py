"""Sampled output must have the target's distribution, whatever drafts, block size, verification and cap are."""

from typing import Any

import numpy as np
import pytest
from toy_model import exact, sequences

from trispark_lab.sampling import Sampling, draw, stream, target_probabilities
from trispark_lab.scheduler import Speculation
from trispark_lab.verification import block_wise, token_wise
from trispark_lab.verify_cap import VerifyCap, parse_cap

COUNT = 400
LENGTH = 4
PLAIN = {"temperature": 1.0}
# Chi-square quantiles at 0.9999 by degrees of freedom (Wilson and Hilferty's cube, good to one per cent here).
NORMAL_9999 = 3.719


def chi_square_limit(freedom: int) -> float:
    part = 2 / (9 * freedom)
    return freedom * float(1 - part + NORMAL_9999 * part**0.5) ** 3


def judge(observed: Any, expected: dict[tuple[int, ...], float], count: int) -> None:
    """Chi-square over outputs (rare ones together) and total variation, both with fixed seeds."""
    assert sum(observed.values()) == count
    impossible = [output for output in observed if expected[output] == 0]
    assert impossible == []
    common = [output for output, chance in expected.items() if chance * count >= 8]
    rest = count * (1 - sum(expected[output] for output in common))
    cells = [(observed[output], expected[output] * count) for output in common]
    if rest >= 1:
        cells.append((count - sum(observed[output] for output in common), rest))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    assert statistic < chi_square_limit(len(cells) - 1)
    distance = sum(abs(observed[output] / count - chance) for output, chance in expected.items()) / 2
    # The mean distance of an exact sampler is at most sum sqrt(p / (2 pi n)); half as much again is far outside.
    assert distance < 1.5 * sum((chance / (2 * np.pi * count)) ** 0.5 for chance in expected.values())


@pytest.mark.parametrize("block_size", range(1, 8))
@pytest.mark.parametrize("block_verify", [False, True])
def test_distribution_for_each_block_size(block_size: int, block_verify: bool) -> None:
    speculation = Speculation(block_verify=block_verify, logit_unit=1.0)
    observed, _ = sequences(block_size, COUNT, LENGTH, PLAIN, speculation)
    judge(observed, exact(LENGTH, PLAIN), COUNT)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "top_k": 2},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("block_verify", [False, True])
def test_distribution_for_each_way_of_choosing(sampling: dict[str, Any], block_verify: bool) -> None:
    speculation = Speculation(block_verify=block_verify, logit_unit=1.0)
    observed, _ = sequences(4, COUNT, LENGTH, sampling, speculation)
    judge(observed, exact(LENGTH, sampling), COUNT)


@pytest.mark.parametrize("tau", [0.5, 2.0])
@pytest.mark.parametrize("block_verify", [False, True])
def test_distribution_with_a_draft_temperature(tau: float, block_verify: bool) -> None:
    speculation = Speculation(draft_tau=tau, block_verify=block_verify, logit_unit=1.0)
    observed, scheduler = sequences(3, COUNT, LENGTH, PLAIN, speculation)
    judge(observed, exact(LENGTH, PLAIN), COUNT)
    _, plain = sequences(3, COUNT, LENGTH, PLAIN, Speculation(block_verify=block_verify, logit_unit=1.0))
    assert scheduler.totals.accepted != plain.totals.accepted, "the proposal is another one"


@pytest.mark.parametrize(
    ("spec", "block_verify"),
    [("1", False), ("2", False), ("2", True), ("conf:0.3", True), ("conf:0.5,0.3,0.2,0.1", True)],
)
def test_distribution_with_a_cap(spec: str, block_verify: bool) -> None:
    speculation = Speculation(block_verify=block_verify, cap=parse_cap(spec, 5), logit_unit=1.0)
    observed, scheduler = sequences(5, COUNT, LENGTH, PLAIN, speculation)
    judge(observed, exact(LENGTH, PLAIN), COUNT)
    assert scheduler.totals.remapped > 0
    assert scheduler.totals.live + scheduler.totals.remapped == 6 * scheduler.totals.verify_count


def test_distribution_without_drafting() -> None:
    target = target_probabilities(np.array([[0.1, 1.2, -0.4, 0.8]], dtype=np.float32), Sampling(1.0), 1.0)[0]
    counts = np.bincount([draw(target, float(stream(seed, 0).random())) for seed in range(COUNT)], minlength=4)
    statistic = float((((counts - COUNT * target) ** 2) / (COUNT * target)).sum())
    assert statistic < chi_square_limit(3)
    observed, scheduler = sequences(3, COUNT, 1, PLAIN)
    assert scheduler.totals.verify_count == 0, "the token after the prompt is never drafted"
    judge(observed, exact(1, PLAIN), COUNT)


@pytest.mark.parametrize("rule", [token_wise, block_wise])
@pytest.mark.parametrize("tables", [0, 1, 2])
def test_the_first_two_tokens_after_one_block(rule: Any, tables: int) -> None:
    """Many blocks of two drafts, straight through the rule: small errors of acceptance or correction show here."""
    made, count = np.random.default_rng(tables), 8000
    first, second, third = (made.dirichlet(np.ones(6), shape) for shape in ((), (6,), (6, 6)))
    draft_first, draft_second = made.dirichlet(np.ones(6)), made.dirichlet(np.ones(6), 6)
    seen = np.zeros((6, 6))
    for numbers in np.random.default_rng(tables + 10).random((count, 6)):
        one = draw(draft_first, numbers[0])
        two = draw(draft_second[one], numbers[1])
        target = np.stack([first, second[one], third[one, two]])
        verdict = rule(target, np.stack([draft_first, draft_second[one]]), [one, two], numbers[2:5])
        tokens = [*[one, two][: verdict.accepted], verdict.token]
        if len(tokens) < 2:
            tokens.append(draw(second[tokens[0]], numbers[5]))
        seen[tokens[0], tokens[1]] += 1
    wanted = count * first[:, None] * second
    assert float(((seen - wanted) ** 2 / wanted).sum()) < chi_square_limit(35)


def accepted_drafts(rule: Any, speed: int, rounds: int = 700) -> float:
    """Mean accepted drafts of a rule over blocks of five with a given mismatch of target and proposal."""
    total = 0
    for seed in range(rounds):
        numbers = np.random.default_rng((speed, seed))
        target = numbers.dirichlet(np.ones(3), 6)
        proposal = target[:5] ** 0.6 + 0.05 * speed * numbers.random((5, 3))
        proposal /= proposal.sum(axis=1, keepdims=True)
        drafted = [draw(row, float(numbers.random())) for row in proposal]
        total += rule(target, proposal, drafted, numbers.random(6)).accepted
    return total / rounds


@pytest.mark.parametrize("speed", [0, 2, 6])
def test_block_verification_accepts_more(speed: int) -> None:
    assert accepted_drafts(block_wise, speed) > 1.01 * accepted_drafts(token_wise, speed)


def expected_accepted(rule: Any, target: Any, proposal: Any) -> float:
    """Exact mean of accepted drafts for two binary drafts, with the uniforms on a fine grid."""
    grid = (np.arange(30) + 0.5) / 30
    total = 0.0
    for first in range(2):
        for second in range(2):
            chance = proposal[0, first] * proposal[1, second]
            counts = [
                rule(target, proposal, [first, second], np.array([a, b, 0.5])).accepted for a in grid for b in grid
            ]
            total += chance * float(np.mean(counts))
    return total


def test_both_rules_by_hand() -> None:
    target = np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    proposal = np.array([[0.25, 0.75], [0.75, 0.25]])
    # Token by token: first draft accepted with sum min(p, q) = 0.5, second again 0.5.
    assert expected_accepted(token_wise, target, proposal) == pytest.approx(0.75, abs=0.02)
    assert expected_accepted(block_wise, target, proposal) >= expected_accepted(token_wise, target, proposal) - 1e-9


@pytest.mark.parametrize(
    ("uniforms", "accepted", "token"),
    [
        ([0.285, 0.0, 0.95], 1, 0),  # 0.2857 = s / (s + 1 - weight) with weight 0.5, s = 0.6 * 0.5 - 0.1
        ([0.287, 0.0, 0.95], 0, 1),  # the first correction: only token 1 has more in the target
        ([0.285, 0.0, 0.0], 1, 0),
    ],
)
def test_block_verification_by_hand(uniforms: list[float], accepted: int, token: int) -> None:
    target = np.array([[0.4, 0.6, 0.0], [0.6, 0.4, 0.0], [0.2, 0.2, 0.6]])
    proposal = np.array([[0.8, 0.2, 0.0], [0.1, 0.3, 0.6]])
    verdict = block_wise(target, proposal, [0, 2], np.array(uniforms))
    assert (verdict.accepted, verdict.token) == (accepted, token)


def test_equal_distributions_accept_everything() -> None:
    target = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    for rule in (token_wise, block_wise):
        for uniform in (0.0, 0.3, 0.999999):
            verdict = rule(target, target[:2], [1, 0], np.array([uniform] * 3))
            assert (verdict.accepted, verdict.token) == (2, 0)


def test_truncation_order_and_ties() -> None:
    logits = np.log(np.array([[0.1, 0.4, 0.4, 0.1]], dtype=np.float32))
    assert target_probabilities(logits, Sampling(1.0, top_k=1), 1.0)[0].tolist() == [0, 1, 0, 0]
    assert target_probabilities(logits, Sampling(1.0, top_k=3), 1.0)[0] == pytest.approx([1 / 9, 4 / 9, 4 / 9, 0])
    assert target_probabilities(logits, Sampling(1.0, top_p=0.39), 1.0)[0] == pytest.approx([0, 1, 0, 0])
    assert target_probabilities(logits, Sampling(1.0, top_p=0.41), 1.0)[0] == pytest.approx([0, 0.5, 0.5, 0])
    # A sum that is met exactly is enough: two equal tokens have exactly 0.5 each.
    assert target_probabilities(np.zeros((1, 2), dtype=np.float32), Sampling(1.0, top_p=0.5), 1.0)[0].tolist() == [1, 0]
    # top_p is of what top_k left: 4/9 is more than 0.44.
    assert target_probabilities(logits, Sampling(1.0, top_p=0.44, top_k=3), 1.0)[0].tolist() == [0, 1, 0, 0]


def test_a_draw_never_gives_what_has_no_weight() -> None:
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [draw(weights, uniform) for uniform in (0.0, 0.2499, 0.25, 1 - 2**-53, 1.0)] == [1, 1, 3, 3, 3]


@pytest.mark.parametrize(
    ("spec", "confidences", "live"),
    [
        ("0", [0.1] * 5, 5),
        ("off", [0.1] * 5, 5),
        ("", [0.1] * 5, 5),
        ("2", [0.9] * 5, 2),
        ("5", [0.9] * 3, 3),
        ("conf:0.5", [0.1, 1, 1, 1, 1], 1),
        ("conf:0.5", [0.8, 0.8, 0.8, 0.9, 1], 3),
        ("conf:0.5", [1.0] * 5, 5),
        ("conf:0.1,0.2,0.3,0.9", [0.8, 0.9, 0.9, 0.9, 0.9], 4),
        ("conf:0.9,0.1,0.1,0.1", [0.8, 0.9, 0.9, 0.9, 0.9], 1),
    ],
)
def test_live_drafts(spec: str, confidences: list[float], live: int) -> None:
    assert parse_cap(spec, 5).live(confidences) == live


@pytest.mark.parametrize(
    ("spec", "block_size", "message"),
    [
        ("6", 5, "can not be read"),
        ("conf:", 5, "can not be read"),
        ("conf:0.1", 3, "conf:0.1 with block size 3"),
        ("conf:0.1,0.2", 5, "thresholds"),
        ("conf:2", 5, "thresholds"),
        ("conf:0", 5, "thresholds"),
        ("conf:0.1.2", 5, "thresholds"),
    ],
)
def test_refused_caps(spec: str, block_size: int, message: str) -> None:
    with pytest.raises(Exception, match=f"TS-ENGINE-CAP: .*{message}"):
        parse_cap(spec, block_size)


def test_a_cap_that_is_off_is_not_armed() -> None:
    assert [parse_cap(spec, 3).armed for spec in ("", "0", "off", "3")] == [False, False, False, True]
    assert not VerifyCap().by_confidence

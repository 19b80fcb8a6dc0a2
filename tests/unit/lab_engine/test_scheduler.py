"""Slots, queue, chunks beside decode, caps and refusals, on a toy model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from toy_model import ToyDraft, ToyModel, toy_scheduler

from trispark_lab import steps
from trispark_lab.induction import SHORTEST, Context, CopyHead
from trispark_lab.requests import Request
from trispark_lab.sampling import Sampling
from trispark_lab.scheduler import QueueFull, Speculation, StepDelay, Unsupported
from trispark_lab.tokenizer import EOS, Tokenizer
from trispark_lab.verify_cap import parse_cap


def request(tokens: int = 6, prompt: tuple[int, ...] = (1, 2, 0), **sampling: Any) -> Request:
    return Request(prompt, tokens, True, lambda taken, reason: None, Sampling(**sampling))


def outputs(scheduler: Any, requests: list[Request]) -> list[list[int]]:
    for item in requests:
        scheduler.submit(item)
    scheduler.drain()
    return [item.output for item in requests]


def mixed() -> list[Request]:
    prompts = [(1, 2, 0), (0, 0, 1), (2, 1, 2, 0, 1, 1, 2), (1, 1, 1)]
    sampled = [request(9, prompt, temperature=1.0, seed=7 + at) for at, prompt in enumerate(prompts)]
    return [*sampled, *(request(9, prompt) for prompt in prompts)]


@pytest.mark.parametrize("sizes", [{"max_running": 1}, {"max_running": 3}, {"max_running": 16}, {"chunk": 2}], ids=str)
def test_sampled_and_greedy_outputs_do_not_depend_on_the_batch(sizes: dict[str, int]) -> None:
    expected = [outputs(toy_scheduler(ToyModel(), 4), [item])[0] for item in mixed()]
    assert outputs(toy_scheduler(ToyModel(), 4, **sizes), mixed()) == expected
    assert outputs(toy_scheduler(ToyModel(), 4, **sizes), mixed()[::-1]) == expected[::-1]


def test_streams_of_seeds_and_positions_differ() -> None:
    many = [
        tuple(outputs(toy_scheduler(ToyModel(), 2), [request(12, temperature=1.0, seed=seed)])[0]) for seed in range(20)
    ]
    assert len(set(many)) > 15


@pytest.mark.parametrize("block_size", range(1, 8))
@pytest.mark.parametrize("spec", ["0", "1", "3"])
def test_greedy_text_for_each_block_size_and_cap(block_size: int, spec: str) -> None:
    expected = outputs(toy_scheduler(ToyModel(), 1), [request(20)])
    speculation = Speculation(cap=parse_cap(spec, block_size), logit_unit=1.0)
    assert outputs(toy_scheduler(ToyModel(), block_size, speculation), [request(20)]) == expected


def test_a_cap_limits_what_is_accepted_and_keeps_the_rectangle() -> None:
    model = ToyModel()
    scheduler = toy_scheduler(model, 5, Speculation(cap=parse_cap("2", 5), logit_unit=1.0))
    item = request(30)
    outputs(scheduler, [item])
    assert max(item.counts.histogram) <= 2
    assert set(item.counts.cap_histogram) == {2}
    assert all(shape == [6] for shape in model.shapes[1:])
    assert scheduler.totals.remapped == 3 * scheduler.totals.verify_count
    assert scheduler.totals.cap_length() == 3


def test_rows_beyond_the_cap_are_the_anchor_s() -> None:
    segment = steps.Segment((9, 8), (1, 2, 3, 4), 4, 2)
    windows, wanted = steps.decode(steps.encode([segment, steps.Segment((7, 7), (5, 6), 1)]), 2)
    assert windows.tolist() == [[1, 8, 9], [2, 1, 8], [1, 8, 9], [1, 8, 9], [5, 7, 7], [6, 5, 7]]
    assert wanted.tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("share", [0.0, 0.05, 2.0])
def test_a_planted_delay_waits_a_share_of_each_decode_step_and_of_no_other(share: float) -> None:
    waits: list[float] = []
    lines: list[str] = []
    scheduler = toy_scheduler(ToyModel(), 2)
    scheduler._log = lines.append
    expected = outputs(toy_scheduler(ToyModel(), 2), [request(9)])
    scheduler._delay = StepDelay(share, waits.append)
    assert outputs(scheduler, [request(9)]) == expected
    prefills = 1
    assert len(waits) == (scheduler.totals.forward_steps - prefills if share else 0)
    assert lines.count("[lab_step_delay] a decode step was held up") == (1 if share else 0)
    assert sum(waits) <= share * scheduler.totals.step_wall_s
    assert all(wait > 0 for wait in waits)


def test_the_decode_line_tells_the_cap() -> None:
    lines: list[str] = []
    scheduler = toy_scheduler(ToyModel(), 5, Speculation(cap=parse_cap("conf:0.3", 5), logit_unit=1.0), log_interval=4)
    scheduler._log = lines.append
    outputs(scheduler, [request(40)])
    decode = [line for line in lines if line.startswith("Decode")]
    assert ", cap len: " in decode[0]
    assert f"{scheduler.line.last.cap_length:.2f}" in decode[-1]
    assert lines.count("[verify_cap] confidence present") == 1
    plain = toy_scheduler(ToyModel(), 5, log_interval=4)
    plain._log = lines.append
    lines.clear()
    outputs(plain, [request(40)])
    assert not any("cap len" in line or "verify_cap" in line for line in lines)


def test_the_decode_line_tells_the_live_rows() -> None:
    lines: list[str] = []
    scheduler = toy_scheduler(ToyModel(), 5, Speculation(cap=parse_cap("2", 5), logit_unit=1.0), log_interval=4)
    scheduler._log = lines.append
    outputs(scheduler, [request(40)])
    assert all(", cap len: 3.00, " in line for line in lines if line.startswith("Decode"))
    assert scheduler.line.last.cap_length == 3


def test_a_decode_line_comes_each_interval() -> None:
    lines: list[str] = []
    scheduler = toy_scheduler(ToyModel(), 1, log_interval=3)
    scheduler._log = lines.append
    outputs(scheduler, [request(40)])
    decode = [line for line in lines if line.startswith("Decode")]
    assert len(decode) == scheduler.totals.verify_count // 3 > 5


def test_the_switch_of_block_verification_chooses_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from trispark_lab import scheduler as module

    used: list[str] = []
    for name in ("token_wise", "block_wise"):
        rule = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, name=name, rule=rule: used.append(name) or rule(*args))
    for switch, expected in ((False, "token_wise"), (True, "block_wise")):
        used.clear()
        speculation = Speculation(block_verify=switch, logit_unit=1.0)
        outputs(toy_scheduler(ToyModel(), 4, speculation), [request(9, temperature=1.0), request(9)])
        assert set(used) == {expected}


def test_the_draft_is_asked_at_the_temperature_times_tau() -> None:
    class Noting(ToyDraft):
        def __init__(self) -> None:
            super().__init__()
            self.temperatures: set[float] = set()

        def sample(self, anchor: int, temperature: float, uniforms: Any) -> Any:
            self.temperatures.add(temperature)
            return super().sample(anchor, temperature, uniforms)

    draft = Noting()
    speculation = Speculation(draft_tau=0.5, logit_unit=1.0)
    outputs(toy_scheduler(ToyModel(), 3, speculation, draft), [request(9, temperature=1.5), request(9)])
    assert draft.temperatures == {0.75}


def test_a_confidence_cap_without_block_verification_refuses_sampled_requests() -> None:
    speculation = Speculation(cap=parse_cap("conf:0.3", 5), logit_unit=1.0)
    scheduler = toy_scheduler(ToyModel(), 5, speculation)
    with pytest.raises(Unsupported, match=r"TS-ENGINE-SAMPLED-CAP: .*DSV41_BLOCK_VERIFY=1"):
        scheduler.submit(request(temperature=1.0))
    assert len(outputs(scheduler, [request(temperature=1.0, top_k=1)])[0]) == 6, "top_k 1 is greedy"


def test_the_confidence_is_of_the_block_after_the_last_committed_token() -> None:
    draft = ToyDraft()
    scheduler = toy_scheduler(ToyModel(), 5, Speculation(cap=parse_cap("conf:0.3", 5), logit_unit=1.0), draft)
    item = request(20)
    scheduler.submit(item)
    scheduler.step()
    while len(item.output) < 20:
        anchor = item.output[-1]
        scheduler.step()
        assert draft.asked[-1] == (anchor, draft.propose(anchor, 5))


def test_the_confidence_of_a_draft_does_not_depend_on_it(generator: Any) -> None:
    draft = generator.draft
    anchor = generator.tokenizer.encode("Bread")[0]
    drafted = draft.propose(anchor, 5)
    values = draft.confidences(anchor, drafted)
    assert all(0 <= value <= 1 for value in values)
    assert len(set(values)) > 1
    for place in range(5):
        other = [*drafted[:place], *(3 for _ in drafted[place:])]
        assert draft.confidences(anchor, other)[: place + 1] == values[: place + 1]


def test_long_prompts_and_decode_share_steps() -> None:
    model = ToyModel()
    scheduler = toy_scheduler(model, 2, chunk=4)
    short, long = request(30), request(3, (0, 1, 2) * 10)
    scheduler.submit(short)
    scheduler.step()
    scheduler.submit(long)
    lengths = []
    while not long.output:
        scheduler.step()
        lengths.append(len(short.output))
    assert len(lengths) == 8, "30 prompt tokens, 4 a step"
    assert lengths == sorted(set(lengths)), "each step gave the other request tokens"
    assert model.shapes[1] == [3, 4]
    assert scheduler.totals.mixed_steps == 8


@pytest.mark.parametrize("chunk", range(1, 9))
def test_the_first_token_knows_the_chunks_before(chunk: int) -> None:
    prompt = (2, 1, 2, 0, 1, 1, 2, 0)
    (output,) = outputs(toy_scheduler(ToyModel(), 2, chunk=chunk), [request(1, prompt)])
    assert output == [int(ToyModel().logits(prompt).argmax())]


def test_a_chunk_is_shared_by_prompts_in_order() -> None:
    model = ToyModel()
    outputs(toy_scheduler(model, 2, chunk=5), [request(1), request(1), request(1)])
    assert model.shapes == [[3, 2], [1, 3]]


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_never_more_than_the_slots(slots: int) -> None:
    model = ToyModel()
    outputs(toy_scheduler(model, 1, max_running=slots), [request(4) for _ in range(12)])
    assert max(len(shape) for shape in model.shapes) == slots


def test_admission_waits_for_free_slots_from_eight_slots_on() -> None:
    def idle_slots(slots: int, delay: int) -> bool:
        """Whether a slot stayed free for a step although a request waited."""
        scheduler = toy_scheduler(ToyModel(), 1, max_running=slots, min_free_slots=delay)
        for at in range(slots + 4):
            scheduler.submit(request(2 + 4 * at))
        seen = False
        while scheduler.step():
            load = scheduler.load()
            before = load["num_running_reqs"], load["num_waiting_reqs"]
            scheduler._admit()
            after = scheduler.load()
            seen |= before[1] > 0 and after["num_running_reqs"] < slots and after["num_waiting_reqs"] > 0
        return seen

    assert idle_slots(8, 0)
    assert not idle_slots(8, 1)
    assert not idle_slots(7, 0)
    assert not idle_slots(7, 1)


def test_the_queue_has_a_limit_and_forgets_what_was_cancelled() -> None:
    scheduler = toy_scheduler(ToyModel(), 2, max_running=1, max_queued=2)
    first, second = request(), request()
    scheduler.submit(first)
    scheduler.submit(second)
    with pytest.raises(QueueFull):
        scheduler.submit(request())
    scheduler.cancel(second)
    third = request()
    scheduler.submit(third)
    scheduler.drain()
    assert (len(first.output), second.output, len(third.output)) == (6, [], 6)
    assert scheduler.load() == {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}


def test_logprobs_of_committed_tokens() -> None:
    scheduler = toy_scheduler(ToyModel(), 3)
    item = request(10)
    item.top_logprobs = 2
    outputs(scheduler, [item])
    model = ToyModel()
    line = [1, 2, 0]
    for token, entry in zip(item.output, item.logprobs, strict=False):
        row = model.logits(line).astype(np.float64)
        table = row - np.log(np.exp(row).sum())
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(table[token]))
        assert entry.top[0] == (token, entry.logprob)
        assert entry.top[1][1] == pytest.approx(float(np.sort(table)[-2]))
        line.append(token)
    assert len(item.logprobs) >= 10


@pytest.mark.parametrize("unit", [1.0, 4.0])
def test_logprobs_are_in_nats_whatever_the_unit(unit: float) -> None:
    scheduler = toy_scheduler(ToyModel(), 3, Speculation(logit_unit=unit))
    item = request(4)
    item.top_logprobs = 3
    outputs(scheduler, [item])
    row = ToyModel().logits((1, 2, 0)).astype(np.float64) / unit
    expected = np.sort(row - np.log(np.exp(row).sum()))[::-1]
    assert [value for _, value in item.logprobs[0].top] == pytest.approx(expected.tolist())


WORDS = Tokenizer(["alpha", " alpha", " beta", " gamma", " delta", "Delta", ".", "\n", " omega"])


@pytest.mark.parametrize(
    ("text", "follower"),
    [
        ("alpha beta gamma delta omega alpha beta gamma", " delta"),
        (" alpha beta gamma delta omega alpha beta gamma", " delta"),
        ("alpha beta gamma omega alpha beta gamma delta alpha beta gamma", " delta"),
        (" omega alpha beta gamma delta alpha beta gamma omega omega alpha beta gamma", " delta"),
        ("beta gamma", None),
        ("alpha beta omega gamma delta beta gamma", None),
        (" omega beta gamma delta alpha beta gamma", None),
        ("alpha beta gamma\n alpha beta gamma", "<eos>"),
        ("alpha beta gamma. omega alpha beta gamma.", "<eos>"),
    ],
)
def test_votes_of_the_copy_head(text: str, follower: str | None) -> None:
    ids = WORDS.encode(text)
    vote = CopyHead.of(WORDS).vote(Context(ids, len(ids) + 4), len(ids))
    assert vote == (None if follower is None else EOS if follower == "<eos>" else WORDS.encode(follower)[0])


class Mute:
    """A target that prefers no token, so that the copy head alone decides."""

    def forward(self, segments: Sequence[steps.Segment]) -> Any:
        return np.zeros((sum(segment.logit_rows for segment in segments), 10), dtype=np.float32)

    def ping(self) -> None:
        pass


class Reciting(ToyDraft):
    """Proposes the number after each number."""

    def propose(self, anchor: int, count: int) -> list[int]:
        return [(anchor + place) % 10 for place in range(1, count + 1)]


@pytest.mark.parametrize("block_size", range(1, 8))
def test_every_row_of_a_block_has_the_vote_of_its_own_place(block_size: int) -> None:
    """Drafts that the context copies are accepted, and what comes after them is copied too."""
    scheduler = toy_scheduler(Mute(), block_size, draft=Reciting())
    scheduler._copy_head = CopyHead(np.arange(10), np.zeros(10, dtype=np.int64))
    (output,) = outputs(scheduler, [request(9, (3, 4, 5, 6, 7, 2, 9, 1, 3, 4, 5))])
    assert output == [6, 7, 2, 9, 1, 3, 4, 5, 6]
    assert (scheduler.totals.accepted > scheduler.totals.verify_count) is True


def test_a_vote_sees_no_token_beyond_its_length() -> None:
    ids = WORDS.encode("alpha beta gamma delta omega alpha beta gamma")
    head = CopyHead.of(WORDS)
    votes = []
    for size in range(len(ids) + 1):
        longer = Context(ids, len(ids) + 8)
        longer.lay(WORDS.encode(" beta beta beta"), len(ids))
        votes.append(head.vote(longer, size))
        assert votes[-1] == head.vote(Context(ids[:size], size + 1), size)
    assert votes == [None] * len(ids) + WORDS.encode(" delta")
    assert SHORTEST == 3

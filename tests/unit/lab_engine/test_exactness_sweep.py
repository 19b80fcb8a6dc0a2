"""The corpus gives the same tokens under every switch: three ranks against one token at a time on one rank.

The default run takes a prompt of each workload through the two ends, everything off and everything on; the tests that
are marked slow take the whole corpus through every switch by itself and through seeded combinations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_ranks import HISTORY, Loading, LocalRanks, Schedule, local_ranks, outputs, plain_greedy, schedule_of

from trispark_lab.corpus import CORPUS_DIR
from trispark_lab.steps import Segment
from trispark_lab.tokenizer import Tokenizer
from trispark_lab.verify_cap import parse_cap

TOKENS = 12
ESSAY = "Row one says that nothing happened. Row two says that the gate was shut before noon. "
NEEDLE = f"{ESSAY}The code word is amber-7421. {ESSAY * 3}\nWhat is the code word? The code word is"
SHIPPED: dict[str, list[str]] = json.loads((CORPUS_DIR / "prompts.json").read_text(encoding="utf-8"))
OTHERS = [
    "What is the capital of Norway?",
    "What is the weather in Paris?\n@",
    "Nobody wrote this, \u00fcnd \u20ac?",
    NEEDLE,
]
CORPUS = [prompt for name in sorted(SHIPPED) for prompt in SHIPPED[name]] + OTHERS
FEW = [*(SHIPPED[name][-1] for name in ("arithmetic", "code", "json", "prose")), NEEDLE]

CACHES = (("0.00001", "1"), ("0.0002", "2"), ("0.001", "3"), ("0.001", "8"), ("0.003", "16"), ("0.25", "16"))
MODES = ((False, False), (True, False), (False, True), (True, True))
CAPS = ("1", "2", "3", "4", "5", "conf:0.1", "conf:0.9", "conf:0.9,0.5,0.4,0.3")


def capped(spec: str, **options: Any) -> Schedule:
    """Blocks of five with a cap."""
    return Schedule(block_size=5, cap=parse_cap(spec, 5), **options)


PLAIN = Schedule()
BLOCKS = tuple(Schedule(block_size=size) for size in range(1, 8))
SLOTS = (
    *(Schedule(slots=slots) for slots in (1, 2, 3, 4)),
    Schedule(slots=8),
    Schedule(slots=8, min_free_slots=1),
    Schedule(slots=3, chunk=5),
)
CAPPED = (
    *(capped(spec) for spec in CAPS),
    *(Schedule(block_size=size, cap=parse_cap("2", size)) for size in (1, 3, 7)),
    capped("conf:0.1", slots=2, tau=0.8, block_verify=True),
)
NARROW = (PLAIN, Schedule(slots=1), Schedule(block_size=7, slots=4, chunk=64))
"""From one row to 32, and 64 of a prompt: every path of a projection by rows."""

ALL_ON = Loading(packed=False, cache=("0.001", "4"), prefetch="check", wo_a=(True, True), ep_size=1)
SWITCHES: dict[str, tuple[Loading, Sequence[Schedule]]] = {
    "packed": (Loading(), (*BLOCKS, *SLOTS, *CAPPED)),
    "unpacked": (Loading(packed=False), BLOCKS),
    "ep1": (Loading(ep_size=1), (*BLOCKS, *SLOTS[:2])),
    "ep1-unpacked": (Loading(ep_size=1, packed=False), NARROW),
    **{f"cache-{gib}-{ways}": (Loading(cache=(gib, ways)), NARROW) for gib, ways in CACHES},
    "cache-unpacked": (Loading(packed=False, cache=("0.001", "4")), (*NARROW, CAPPED[0])),
    "prefetch": (Loading(prefetch="on"), (*NARROW, CAPPED[5])),
    "prefetch-check": (Loading(prefetch="check"), NARROW),
    "prefetch-unpacked-cache": (Loading(packed=False, cache=("0.001", "4"), prefetch="check"), NARROW),
    **{f"wo_a-mid{mid:d}-drop{drop:d}": (Loading(wo_a=(mid, drop)), (*NARROW, CAPPED[5])) for mid, drop in MODES},
    "all": (ALL_ON, (*NARROW, *CAPPED[-4:])),
}


def seeded(seed: int) -> tuple[Loading, Sequence[Schedule]]:
    """A combination of all switches, and three schedules on it."""
    pick = random.Random(seed).choice

    def schedule() -> Schedule:
        size = pick(range(1, 8))
        spec = pick(("0", "1", "2", "3", "5", *(("conf:0.1", "conf:0.6") if size == 5 else ())))
        slots, chunk, delay = pick((1, 2, 3, 4, 8)), pick((7, 64, 1024)), pick((0, 1))
        return Schedule(size, parse_cap(spec, size), slots, chunk, delay, pick((1.0, 0.8)), pick((False, True)))

    loading = Loading(
        pick((True, False)),
        pick((("0", "4"), *CACHES)),
        pick(("off", "on", "check")),
        pick((None, *MODES)),
        pick((1, 3)),
    )
    return loading, tuple(schedule() for _ in range(3))


@pytest.fixture(scope="module")
def reference(generator: Any) -> Callable[[str], list[int]]:
    """Tokens of a prompt, made once."""
    known: dict[str, list[int]] = {}

    def tokens(prompt: str) -> list[int]:
        if prompt not in known:
            known[prompt] = plain_greedy(generator.model, generator.tokenizer, prompt, TOKENS)
        return known[prompt]

    return tokens


@pytest.fixture
def start(checkpoint: Path, packed: Path, tmp_path: Path, tokenizer: Tokenizer) -> Callable[[Loading], Any]:
    return lambda loading: local_ranks(checkpoint, packed, tmp_path, tokenizer, loading)


def judge(
    ranks: LocalRanks, loading: Loading, schedules: Sequence[Schedule], prompts: Sequence[str], reference: Any, one: Any
) -> None:
    """Tokens of the reference, the acceptance of one rank by the same schedule, the counters that the switches say."""
    expected = [reference(prompt) for prompt in prompts]
    config = ranks.models[0].config
    for schedule in schedules:
        scheduler = schedule_of(ranks.runner, ranks.draft, ranks.tokenizer, config, schedule)
        assert outputs(scheduler, ranks.tokenizer, prompts, TOKENS) == expected, schedule
        alone = schedule_of(one.runner, one.draft, one.tokenizer, config, schedule)
        outputs(alone, one.tokenizer, prompts, TOKENS)
        told = [(each.totals.accepted, each.totals.verify_count, each.totals.live) for each in (scheduler, alone)]
        assert told[0] == told[1], "the draft is another one"
    for layer in range(len(config.layers)):
        for counts in ranks.counts(layer):
            assert counts.reads == (1 if loading.packed else 2) * (counts.lookups - counts.hits)
            assert (counts.hits > 0) is (loading.cache[0] != "0")
    for adapters in ranks.adapters:
        if adapters.prefetch is not None:
            assert adapters.prefetch.served > 0
            assert adapters.prefetch.synchronous == 0
            assert list(adapters.prefetch.differing.values()) == [0 if loading.prefetch == "check" else -1] * 2
        if loading.wo_a is not None:
            mid, drop = loading.wo_a
            calls = adapters.calls
            assert calls["dense"] > 0, "prompts are long"
            assert ("mid" in calls) is mid
            assert calls.get("dequantised", 0) == (calls["dense"] if drop else 0)
        assert not [line for line in adapters.said if "disabled" in line]


@pytest.mark.parametrize(
    ("loading", "schedules"),
    [
        pytest.param(Loading(), (PLAIN, Schedule(block_size=7, slots=3, chunk=9)), id="off"),
        pytest.param(ALL_ON, (PLAIN, CAPPED[-1]), id="on"),
    ],
)
def test_both_ends(
    start: Any, reference: Any, cached_generator: Any, loading: Loading, schedules: Sequence[Schedule]
) -> None:
    with start(loading) as ranks:
        judge(ranks, loading, schedules, FEW, reference, cached_generator)


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch(start: Any, reference: Any, cached_generator: Any, name: str) -> None:
    loading, schedules = SWITCHES[name]
    with start(loading) as ranks:
        judge(ranks, loading, schedules, CORPUS, reference, cached_generator)
        if loading.wo_a is not None:
            for adapters in ranks.adapters:
                assert adapters.calls["twin"] > 0
                assert adapters.calls.get("mid", 1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_combinations(start: Any, reference: Any, cached_generator: Any, seed: int) -> None:
    loading, schedules = seeded(seed)
    with start(loading) as ranks:
        judge(ranks, loading, schedules, CORPUS, reference, cached_generator)


def test_the_reference_is_the_corpus_and_finds_the_needle(reference: Any, tokenizer: Tokenizer) -> None:
    texts = [tokenizer.decode(reference(prompt)) for prompt in (SHIPPED["arithmetic"][0], OTHERS[0], NEEDLE)]
    assert texts == ["42", "Oslo.", " amber-7421."]


def test_the_sweep_takes_every_switch() -> None:
    """Block sizes 1 to 7, one to four slots, every kind of cap, and each value of each switch of loading."""
    taken = [*SWITCHES.values(), *(seeded(seed) for seed in range(8))]
    schedules = [schedule for _, each in taken for schedule in each]
    assert {each.block_size for each in schedules} == set(range(1, 8))
    assert {1, 2, 3, 4} <= {each.slots for each in schedules}
    assert {0, 1} == {each.min_free_slots for each in schedules}
    assert {each.cap.spec for each in schedules if each.cap is not None} >= set(CAPS)
    loadings = [loading for loading, _ in taken]
    assert {each.packed for each in loadings} == {True, False}
    assert {each.cache for each in loadings} >= set(CACHES)
    assert {each.prefetch for each in loadings} == {"off", "on", "check"}
    assert {each.wo_a for each in loadings} == {None, *MODES}
    assert {each.ep_size for each in loadings} == {1, 3}


class Recording:
    """The runner of the ranks, which keeps the windows of live rows, newest token first."""

    def __init__(self, ranks: LocalRanks) -> None:
        self._runner = ranks.runner
        self.windows: set[tuple[int, ...]] = set()

    def forward(self, segments: Sequence[Segment]) -> Any:
        for segment in segments:
            line = (*segment.history, *segment.tokens)
            for place in range(segment.live or len(segment.tokens)):
                self.windows.add(line[place : place + HISTORY + 1][::-1])
        return self._runner.forward(segments)


def test_rows_beyond_the_cap_are_read_by_no_rank(start: Any) -> None:
    """Every rank is told the live rows; with a cache that holds all, rows are read for windows of live rows alone."""
    with start(Loading(cache=("0.25", "16"))) as ranks:
        config, runner = ranks.models[0].config, Recording(ranks)
        scheduler = schedule_of(runner, ranks.draft, ranks.tokenizer, config, capped("1"))
        outputs(scheduler, ranks.tokenizer, SHIPPED["prose"][:2], TOKENS)
        assert scheduler.totals.remapped == 4 * scheduler.totals.verify_count > 0
        classes = np.array(ranks.tokenizer.compressed_ids())[np.array(sorted(runner.windows))]
        for place, layer in enumerate(ranks.models[0].layers):
            ids = np.unique(layer.hashes.row_ids(classes))
            shards = [each.layers[place].store.shard for each in ranks.models]
            owned = [int(((ids >= shard.first) & (ids < shard.end)).sum()) for shard in shards]
            assert [counts.reads for counts in ranks.counts(place)] == owned

"""Prefetched rows against synchronous ones on the engine's real hasher, embedding and Engram block."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from engram_engine import LAYERS, as_rank, bits, bounds_of, fresh, tables  # noqa: E402

from trispark_adapters import engram_backend, engram_prefetch  # noqa: E402
from trispark_hooks.registry import HookError  # noqa: E402

TOTALS = (1999, 2001)
COLUMNS = 6


class Model:
    """Two Engram embeddings behind a hasher, as the engine's forward uses them: ids once, then a slice a layer."""

    def __init__(self, module: ModuleType, rank: int) -> None:
        as_rank(module, rank)
        self.module = module
        module.ReplicatedLinear = lambda *args, **kwargs: torch.nn.Identity()
        layout = SimpleNamespace(
            layer_ids=LAYERS, num_embeddings=TOTALS, head_dim=256, max_ngram_size=4, n_heads=2,
            column_bounds=lambda index: bounds_of(TOTALS[index]),
        )  # fmt: skip
        config = SimpleNamespace(rms_norm_eps=1e-6, hidden_size=8, hc_mult=2)
        self.layers = [module.Engram(config, layer, layout) for layer in LAYERS]
        self.hasher = object.__new__(module.EngramHasher)

    def step(self, ids: Any, before: Any = None) -> list[Any]:
        """Rows of both layers for `ids` [T, 2, C]; `before` runs between hasher and lookups."""
        hashed = self.module.EngramHasher.forward(self.hasher, ids, None)
        if before is not None:
            before()
        return [layer.embed(hashed[:, layer.layer_hash_index]) for layer in self.layers]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("DSV41_PACKED_DIR", str(tmp_path))
    monkeypatch.setenv("DSV41_CACHE_GIB", "0")
    module = fresh(monkeypatch)
    tables(tmp_path, module, TOTALS)
    # The hasher's own arithmetic is not what is tested here; what it returns is given.
    module.EngramHasher.forward = lambda self, input_ids, forward_batch: input_ids
    engram_backend.install(module)
    return module


def prefetched(module: ModuleType, monkeypatch: pytest.MonkeyPatch, check: bool = False) -> engram_prefetch.Prefetch:
    made: list[engram_prefetch.Prefetch] = []

    def remember(checking: bool) -> engram_prefetch.Prefetch:
        made.append(kind(checking))
        return made[0]

    kind = engram_prefetch.Prefetch
    monkeypatch.setattr(engram_prefetch, "Prefetch", remember)
    monkeypatch.setenv("DSV41_ENGRAM_PREFETCH_CHECK", str(int(check)))
    engram_prefetch.install(module)
    return made[0]


def batch(random: np.random.Generator, tokens: int) -> Any:
    ids = np.stack([random.integers(0, total, (tokens, COLUMNS)) for total in TOTALS], axis=1)
    if tokens > 1 and random.integers(2):
        ids[1:] = ids[0]  # the same rows more than once
    return torch.from_numpy(ids)


@pytest.mark.parametrize("rank", range(3))
def test_many_random_batches_equal_the_synchronous_path(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    plain = Model(engine, rank)
    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, rank)
    random = np.random.default_rng(rank)
    for tokens in [6, 1, 0, 24, 6, 7, 1, 96, 2, *random.integers(0, 40, 80).tolist()]:
        ids = batch(random, int(tokens))
        served = [layer.staging.calls for layer in prefetch._layers.values()]
        for layer, rows, reference in zip(LAYERS, model.step(ids), plain.layers, strict=True):
            expected = getattr(reference.embed, engram_backend.ROWS).read(ids[:, LAYERS.index(layer)])
            assert torch.equal(bits(rows), bits(expected))
        now = [layer.staging.calls for layer in prefetch._layers.values()]
        assert [new - old for new, old in zip(now, served, strict=True)] == [int(tokens > 0)] * 2
    assert prefetch.enabled


def test_ids_that_are_not_those_of_the_lookup_are_read_synchronously(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, 0)
    random = np.random.default_rng(5)
    ids = batch(random, 8)
    embed = model.layers[0].embed
    rows = getattr(embed, engram_backend.ROWS)
    others = [
        ("another tensor", lambda: ids[:, 0].clone()),
        ("fewer tokens", lambda: ids[:4, 0]),
        ("later tokens", lambda: ids[1:, 0]),
        ("the other layer's", lambda: ids[:, 1]),
        ("fewer columns", lambda: ids[:, 0, :3]),
        ("another form", lambda: ids[:, 0].reshape(-1)),
        ("other strides", lambda: ids[::2, 0]),
    ]
    for name, other in others:
        engine.EngramHasher.forward(model.hasher, ids, None)
        before = rows.staging.calls
        wanted = other()
        assert torch.equal(bits(embed._owned_rows(wanted)), bits(rows.read(wanted))), name
        assert rows.staging.calls == before + 2, name  # not served ahead, and once for the comparison
    assert prefetch.enabled
    engine.EngramHasher.forward(model.hasher, ids, None)
    before = rows.staging.calls
    embed._owned_rows(ids[:, 0])
    embed._owned_rows(ids[:, 0])  # a lookup is used once
    assert rows.staging.calls == before + 1


def test_nothing_is_read_ahead_between_the_segments_of_a_prefill_graph(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context

    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, 0)
    ids = batch(np.random.default_rng(4), 6)
    with context.enable_breakable_cuda_graph():
        rows = model.step(ids)
    assert [layer.staging.calls for layer in prefetch._layers.values()] == [0, 0]
    for index, (found, layer) in enumerate(zip(rows, model.layers, strict=True)):
        assert torch.equal(bits(found), bits(getattr(layer.embed, engram_backend.ROWS).read(ids[:, index])))
    model.step(ids)
    assert [layer.staging.calls for layer in prefetch._layers.values()] == [1, 1]


def test_the_lookup_runs_beside_the_forward(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are read although nobody asks for them before the reads of both layers are over."""
    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, 0)
    ids = batch(np.random.default_rng(1), 4)

    def wait_for_reads() -> None:
        for pending in prefetch._book._pending.values():
            assert pending.ticket.done.wait(30)

    model.step(ids, wait_for_reads)
    assert prefetch.enabled


def test_a_failing_read_turns_the_prefetch_off_and_rows_stay_right(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, 0)
    ids = batch(np.random.default_rng(2), 6)
    store = next(iter(prefetch._layers.values())).staging._store
    from engram_store import Code, Job, StoreError

    real = Job.run
    caller = threading.current_thread()

    def fail_ahead(job: Any) -> None:
        if threading.current_thread() is not caller:
            raise StoreError(Code.READ, "planted")
        real(job)

    monkeypatch.setattr(Job, "run", fail_ahead)
    assert store is not None
    expected = [getattr(layer.embed, engram_backend.ROWS).read(ids[:, i]) for i, layer in enumerate(model.layers)]
    for _ in range(3):
        for rows, wanted in zip(model.step(ids), expected, strict=True):
            assert torch.equal(bits(rows), bits(wanted))
    assert not prefetch.enabled
    said = [line for line in capfd.readouterr().out.splitlines() if "disabled after error" in line]
    assert len(said) == 1
    assert said[0].startswith("DSV41 Engram prefetch disabled after error: StoreError: TS-STORE-READ")


def test_a_lookup_that_nobody_comes_for_is_over_before_what_follows(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second layer's fork fails when the first layer's lookup is under way."""
    prefetch = prefetched(engine, monkeypatch)
    model = Model(engine, 0)
    ids = batch(np.random.default_rng(6), 6)
    model.step(ids)
    from engram_store import Job

    first, second = (prefetch._layers[layer] for layer in LAYERS)
    over: list[bool] = []
    go, real = threading.Event(), Job.run

    def slow(job: Any) -> None:
        if job in {staged.job for staged in first.staging._jobs.values()}:
            assert go.wait(30)
            over.append(True)
        real(job)

    def fail(*args: Any) -> Any:
        threading.Timer(0.05, go.set).start()
        raise RuntimeError("no pinned memory")

    monkeypatch.setattr(Job, "run", slow)
    monkeypatch.setattr(second.staging, "get", fail)
    engine.EngramHasher.forward(model.hasher, ids, None)
    assert over == [True]
    assert not prefetch.enabled
    assert len(prefetch._book) == 0


class Streams:
    """What a lane says to CUDA, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[str, ...]] = []
        main, side = self._stream("main"), self._stream("side")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
        monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda on: self.say("record", on.name)))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def say(self, *words: str) -> None:
        self.said.append(words)

    def _stream(self, name: str) -> Any:
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.say(name, "waits for", other.name),
            wait_event=lambda event: self.say(name, "waits for the event"),
        )


@pytest.mark.parametrize("failing", [False, True])
def test_a_branch_of_a_graph_is_closed_in_any_case(monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    from trispark_adapters import engram_lane, engram_staging

    streams = Streams(monkeypatch)
    monkeypatch.setattr(engram_staging, "capturing", lambda device: True)

    def start(staged: Any, ids: Any) -> None:
        streams.say("start")
        if failing:
            raise RuntimeError("cuLaunchHostFunc gives CUresult 1")

    monkeypatch.setattr(engram_staging, "start", start)
    lane = engram_lane.StreamLane("cuda")
    begun = [("side", "waits for", "main"), ("start",)]
    if failing:
        with pytest.raises(RuntimeError, match="CUresult"):
            lane.fork(SimpleNamespace(), torch.zeros(1))
        assert streams.said == [*begun, ("main", "waits for", "side")]
        return
    lane.leave(lane.fork(SimpleNamespace(), torch.zeros(1)))
    assert streams.said == [*begun, ("record", "side"), ("main", "waits for the event")]


def test_check_mode_counts_what_differs(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prefetch = prefetched(engine, monkeypatch, check=True)
    model = Model(engine, 0)
    assert prefetch.differing == [-1, -1]
    random = np.random.default_rng(3)
    for _ in range(4):
        model.step(batch(random, 6))
    assert prefetch.differing == [0, 0]
    said = prefetch.line()
    assert said == (
        "DSV41 Engram prefetch served=8 synchronous=8\n"
        "DSV41 Engram prefetch CHECK: gathers differing from the synchronous path per layer = [0, 0]"
    )
    assert prefetch.line() is None
    from trispark_adapters import engram_staging

    real = engram_staging.dequantise

    def flip(staged: Any, out: Any, gather: Any) -> Any:
        rows = real(staged, out, gather)
        if staged.job in ahead:
            rows.view(torch.int16)[0, 0, 0] ^= 1
        return rows

    first = prefetch._layers[LAYERS[0]]
    ahead = [staged.job for staged in first.staging._jobs.values()]
    monkeypatch.setattr(engram_staging, "dequantise", flip)
    model.step(batch(random, 6))
    assert prefetch.differing == [1, 0]
    assert "ARMED: layers [1, 14], reads start when the row ids are known, CHECK" in capfd.readouterr().out


def test_without_the_row_store_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-ORDER"):
        engram_prefetch.install(fresh(monkeypatch))


def test_the_real_hasher_gives_ids_of_the_expected_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """int64 [T, layers, columns], contiguous: what `Prefetch.ids_known` and `slice_key` rest on."""
    module = fresh(monkeypatch)
    hasher = object.__new__(module.EngramHasher)
    torch.nn.Module.__init__(hasher)
    hasher.max_ngram_size = 4
    hasher.pad_id = 0
    hasher.image_token_id = None
    hasher.pad_row = 4
    hasher.history = torch.zeros(5, 3, dtype=torch.int32)
    hasher.register_buffer("token_map", torch.arange(50))
    hasher.register_buffer("multipliers", module.compute_hash_multipliers(LAYERS, 4, 50))
    hasher.register_buffer("primes", torch.tensor([[[101, 103]] * 3, [[107, 109]] * 3]))
    hasher.register_buffer("offsets", torch.zeros(2, 6, dtype=torch.int64))
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    forward = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        req_pool_indices=torch.tensor([0, 1]),
        positions=torch.tensor([0, 1, 2, 4, 5, 6]),
        spec_info=SimpleNamespace(draft_token_num=3),
        out_cache_loc=torch.ones(6, dtype=torch.int64),
        engram_history=None,
    )
    ids = module.EngramHasher.forward(hasher, torch.arange(6), forward)
    assert ids.dtype == torch.int64
    assert tuple(ids.shape) == (6, 2, 6)
    assert ids.is_contiguous()
    for index in range(2):
        from trispark_adapters.engram_pending import slice_key

        assert engram_prefetch.key_of(ids[:, index]) == slice_key(ids.data_ptr(), 6, 2, 6, index, False)

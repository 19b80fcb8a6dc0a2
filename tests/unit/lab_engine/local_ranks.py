"""Three ranks of the engine in this process, each with adapters of its own as three processes would have them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from trispark_hooks.lab_engram_prefetch import Prefetch
from trispark_hooks.lab_wo_a_w8 import Adapter, Modes
from trispark_lab import engram, projection, steps
from trispark_lab.checkpoint import Checkpoint
from trispark_lab.collective import Collective
from trispark_lab.config import ModelConfig, load_model_config, parse
from trispark_lab.draft import MarkovDraft
from trispark_lab.induction import VOTE, Context, CopyHead
from trispark_lab.links import Mesh
from trispark_lab.model import RankModel, load_model
from trispark_lab.readers import ReaderPool
from trispark_lab.requests import Request
from trispark_lab.row_store import RowCacheSwitch
from trispark_lab.scheduler import Limits, Scheduler, Speculation
from trispark_lab.steps import StepRunner
from trispark_lab.switches import Order, RankSwitches, SwitchBoard, exchange
from trispark_lab.tokenizer import Tokenizer

WORLD = 3
DEADLINE_S = 60
HISTORY = 3


@dataclass(frozen=True)
class Loading:
    """What is decided when a rank loads. wo_a: None without twins, else (MID, DROP); prefetch: off, on or check."""

    packed: bool = True
    cache: tuple[str, str] = ("0", "4")
    prefetch: str = "off"
    wo_a: tuple[bool, bool] | None = None
    ep_size: int = 3

    def environment(self, packed: Path, unpacked: Path) -> dict[str, str]:
        """Variables of the rows; the adapters of these ranks are installed by hand."""
        return {
            "DSV41_PACKED_DIR": str(packed if self.packed else unpacked),
            "DSV41_CACHE_GIB": self.cache[0],
            "DSV41_CACHE_WAYS": self.cache[1],
            "DSV41_IO_THREADS": "2",
        }


@dataclass(frozen=True)
class Schedule:
    """What is decided when a scheduler is made."""

    block_size: int = 3
    cap: Any = None
    slots: int = 4
    chunk: int = 1024
    min_free_slots: int = 0
    tau: float = 1.0
    block_verify: bool = False

    def speculation(self) -> Speculation:
        options = {} if self.cap is None else {"cap": self.cap}
        return Speculation(self.tau, self.block_verify, **options)


@dataclass
class RankAdapters:
    """Adapters of one rank, None where the engine's own path is kept, and what they said."""

    prefetch: Prefetch | None
    wo_a: Adapter | None
    calls: dict[str, int]
    said: list[str] = field(default_factory=list)


def _adapters(loading: Loading) -> RankAdapters:
    said: list[str] = []
    calls = {"dense": 0}
    own = projection.project

    def project(inputs: Any, weight: Any, **kwargs: Any) -> Any:
        calls["dense"] += 1
        return own(inputs, weight, **kwargs)

    rows: Any = SimpleNamespace(attach=engram.attach, ids_known=engram.ids_known, gather=engram.gather)
    product: Any = SimpleNamespace(CALLS=calls, prepare=projection.prepare, project=project)
    return RankAdapters(
        Prefetch(rows, loading.prefetch == "check", said.append) if loading.prefetch != "off" else None,
        Adapter(product, said.append, Modes(*loading.wo_a)) if loading.wo_a is not None else None,
        calls,
        said,
    )


class LocalRanks:
    """Three loaded ranks: rank 0 in the caller's thread, the others in threads of their own."""

    def __init__(
        self,
        models: Sequence[RankModel],
        adapters: Sequence[RankAdapters],
        runner: StepRunner,
        draft: MarkovDraft,
        tokenizer: Tokenizer,
        switches: Sequence[RankSwitches],
    ) -> None:
        self.switches = switches
        self.models = models
        self.adapters = adapters
        self.runner = runner
        self.draft = draft
        self.tokenizer = tokenizer

    def board(self) -> SwitchBoard:
        """Rank 0's side of the switches."""
        return SwitchBoard(self.switches[0], lambda order: self.runner.switch(self.switches[0], order))

    def counts(self, layer: int) -> list[Any]:
        """Counters of one layer's rows by rank."""
        return [each.layers[layer].store.counts for each in self.models]


@contextlib.contextmanager
def local_ranks(
    checkpoint: Path, packed: Path, unpacked: Path, tokenizer: Tokenizer, loading: Loading
) -> Iterator[Any]:
    """Load three ranks, serve until the end of the block. A failure of any rank is raised."""
    peers: list[dict[int, socket.socket]] = [{} for _ in range(WORLD)]
    for low in range(WORLD):
        for high in range(low + 1, WORLD):
            peers[low][high], peers[high][low] = socket.socketpair()
    meshes = [Mesh(rank, peers[rank], DEADLINE_S) for rank in range(WORLD)]
    collectives = [Collective(mesh) for mesh in meshes]
    config = load_model_config(checkpoint)
    adapters = [_adapters(loading) for _ in range(WORLD)]
    here = threading.local()
    failures: list[BaseException] = []
    switches: list[RankSwitches] = []

    def of_rank(kind: str, name: str, own: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            adapter = getattr(adapters[here.rank], kind)
            return (own if adapter is None else getattr(adapter, name))(*args, **kwargs)

        return call

    def load(rank: int) -> RankModel:
        here.rank = rank
        flags = ["--model-path", str(checkpoint), "--tp", str(WORLD), "--nnodes", str(WORLD), "--node-rank", str(rank)]
        flags += ["--ep-size", str(loading.ep_size)]
        for peer in set(range(WORLD)) - {rank}:
            flags += ["--pair-link", f"{peer}:127.0.0.1:127.0.0.1"]
        engine = parse(flags, loading.environment(packed, unpacked))
        return load_model(engine, config, tokenizer, collectives[rank], ReaderPool(2), lambda line: None)

    def serve(rank: int) -> None:
        here.rank = rank
        try:
            while True:
                received = collectives[rank].next_broadcast("a step", DEADLINE_S, lambda: False)
                assert received is not None
                if received[0] == steps.SWITCH:
                    exchange(switches[rank], collectives[rank], Order.decode(received[1]))
                    continue
                if received[0] != steps.FORWARD:
                    return
                steps.run_forward(models[rank], received[1], HISTORY)
        except BaseException as error:
            failures.append(error)
            meshes[rank].close()  # ends the others

    with contextlib.ExitStack() as stack:
        for module, kind, names in (
            (engram, "prefetch", ("attach", "ids_known", "gather")),
            (projection, "wo_a", ("prepare", "project")),
        ):
            for name in names:
                stack.enter_context(mock.patch.object(module, name, of_rank(kind, name, getattr(module, name))))
        models = [load(rank) for rank in range(WORLD)]
        for each, adapter in zip(models, adapters, strict=True):
            found: dict[str, Any] = RowCacheSwitch.of([layer.store for layer in each.layers])
            if adapter.prefetch is not None:
                found["engram_prefetch"] = adapter.prefetch
            switches.append(RankSwitches(found))
        draft = MarkovDraft.load(Checkpoint(checkpoint), config)
        ranks = LocalRanks(models, adapters, StepRunner(models[0], collectives[0]), draft, tokenizer, switches)
        here.rank = 0
        threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(1, WORLD)]
        for thread in threads:
            thread.start()
        try:
            yield ranks
            ranks.runner.goodbye()
        finally:
            for mesh in meshes[:1]:
                mesh.close()
            for thread in threads:
                thread.join(DEADLINE_S)
            for mesh in meshes[1:]:
                mesh.close()
            for model in models:
                for layer in model.layers:
                    layer.store.close()
    if failures:
        raise failures[0]


def schedule_of(
    runner: Any, draft: MarkovDraft, tokenizer: Tokenizer, config: ModelConfig, schedule: Schedule
) -> Scheduler:
    """A scheduler over any runner, three ranks or one."""
    limits = Limits(
        max_running=schedule.slots,
        chunk=schedule.chunk,
        max_total_tokens=1 << 20,
        block_size=schedule.block_size,
        log_interval=40,
        history=HISTORY,
        eos=config.eos_token,
        pad=config.engram_pad_token,
        min_free_slots=schedule.min_free_slots,
    )
    head = CopyHead.of(tokenizer)
    return Scheduler(limits, runner, draft, lambda line: None, schedule.speculation(), head)


def outputs(scheduler: Scheduler, tokenizer: Tokenizer, prompts: Sequence[str], tokens: int) -> list[list[int]]:
    """Greedy outputs of the prompts, which are submitted at once."""
    requests = [Request(tuple(tokenizer.encode(prompt)), tokens, False, lambda _, reason: None) for prompt in prompts]
    for request in requests:
        scheduler.submit(request)
    scheduler.drain()
    return [request.output for request in requests]


def plain_greedy(model: RankModel, tokenizer: Tokenizer, prompt: str, count: int) -> list[int]:
    """The reference: one token at a time on one rank, without drafts, batches, chunks or a scheduler."""
    line = tokenizer.encode(prompt)
    head, config = CopyHead.of(tokenizer), model.config
    output: list[int] = []
    while len(output) < count and config.eos_token not in output:
        window = [*line[: -HISTORY - 2 : -1], *[config.engram_pad_token] * HISTORY][: HISTORY + 1]
        row = model.forward(np.array([window]), np.array([0]))[0].copy()
        vote = head.vote(Context(line, len(line) + 1), len(line))
        if vote is not None:
            row[vote] += VOTE
        output.append(int(row.argmax()))
        line.append(output[-1])
    return output

"""Both placements of the routed block give the bits of the plain sum, and their work is counted."""

import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark_lab import steps
from trispark_lab.collective import Collective
from trispark_lab.config import MoeConfig, load_model_config, parse
from trispark_lab.experts import Expert, Placement, RoutedBlock, Work, WorkLines, place
from trispark_lab.links import Mesh
from trispark_lab.model import RankModel, load_model
from trispark_lab.readers import ReaderPool
from trispark_lab.tokenizer import Tokenizer

KNOWN = "A lighthouse is a promise made in stone."
SHAPE = MoeConfig(experts=12, chosen=2, inner=96, output=32)
GENERATOR = np.random.default_rng(5)
GATE = GENERATOR.choice([-1.0, 1.0], (12, 64)).astype(np.float32)
W1 = GENERATOR.choice([-1.0, 1.0], (12, 96, 64)).astype(np.float32)
W2 = GENERATOR.integers(-1, 2, (12, 32, 96)).astype(np.float32)
OUTPUT = GENERATOR.choice([-1.0, 1.0], (32, 50)).astype(np.float32)


def block(ep_size: int, rank: int, world: int) -> RoutedBlock:
    where = place(SHAPE.experts, SHAPE.inner, ep_size, rank, world)
    columns = slice(where.left, where.right)
    experts = [Expert(e, W1[e, columns], W2[e, :, columns]) for e in range(where.first, where.end)]
    return RoutedBlock(14, GATE, experts, SHAPE, where, OUTPUT)


def plain(rows: np.ndarray) -> np.ndarray:
    """The block's sum in 64-bit integers, row by row."""
    wide = rows.astype(np.int64)
    result = np.zeros((len(rows), 32), dtype=np.int64)
    for index, row in enumerate(wide):
        scores = GATE.astype(np.int64) @ row
        best = sorted(range(12), key=lambda e: (-scores[e], e))[:2]
        for weight, e in zip((2, 1), best, strict=True):
            inner = np.clip((W1[e].astype(np.int64) @ row) // 128, 0, 3)
            result[index] += weight * (W2[e].astype(np.int64) @ inner)
    return result


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from([0, 1, 120]))
def test_placements_give_the_plain_sum(seed: int, count: int, size: int) -> None:
    rows = np.random.default_rng(seed).integers(-size, size + 1, (count, 64)).astype(np.float32)
    expected = plain(rows)
    for ep_size, world in ((1, 1), (3, 3), (1, 3), (2, 2), (1, 5), (5, 5)):
        parts = [block(ep_size, rank, world).partial(rows) for rank in range(world)]
        assert np.array_equal(sum(parts), expected), (ep_size, world)
    assert np.array_equal(block(1, 0, 1).logits(rows), expected @ OUTPUT)


@pytest.mark.parametrize(
    ("ep_size", "world", "expected"),
    [
        (3, 3, [Placement(0, 4, 0, 96), Placement(4, 8, 0, 96), Placement(8, 12, 0, 96)]),
        (1, 3, [Placement(0, 12, 0, 32), Placement(0, 12, 32, 64), Placement(0, 12, 64, 96)]),
        (1, 1, [Placement(0, 12, 0, 96)]),
    ],
)
def test_who_holds_what(ep_size: int, world: int, expected: list[Placement]) -> None:
    assert [place(12, 96, ep_size, rank, world) for rank in range(world)] == expected


def test_whole_experts_show_the_imbalance_and_slices_do_not() -> None:
    few, many = np.random.default_rng(1).integers(-99, 100, (2, 64)).astype(np.float32)
    rows = np.stack([many, few, many, many, many, many])  # most rows go to the same two experts
    routed = block(1, 0, 1).route(rows)
    assert len(np.unique(routed)) > 2
    for ep_size in (3, 1):
        blocks = [block(ep_size, rank, 3) for rank in range(3)]
        for each in blocks:
            each.partial(rows)
        own = [each.work.own for each in blocks]
        assert {each.work.total for each in blocks} == {6 * 2 * 96}
        assert sum(own) == 6 * 2 * 96
        if ep_size == 1:
            assert own == [6 * 2 * 32] * 3
        else:
            assert own == [96 * int((routed // 4 == rank).sum()) for rank in range(3)]
            assert max(own) > sum(own) / 3


def test_lines_are_deltas() -> None:
    part = block(1, 1, 3)
    source = WorkLines(part, 1, 1)
    assert source(False) == []
    part.partial(np.ones((5, 64), dtype=np.float32))
    head = r"MoE layer=14 rank=1 ep_size=1 experts=\[0,12\) inner=\[32,64\)"
    assert re.fullmatch(rf"{head} rows=5 work=320 share=33\.3%", source(False)[0])
    assert source(False) == []
    assert source(True)[0].endswith(" rows=0 work=0 share=0.0%")
    assert part.work == Work(5, 320, 960)


@pytest.mark.parametrize("ep_size", [3, 1])
def test_three_ranks_give_the_logits_of_one(
    checkpoint: Path, packed: Path, tokenizer: Tokenizer, generator: Any, ep_size: int
) -> None:
    peers: list[dict[int, socket.socket]] = [{}, {}, {}]
    for low, high in ((0, 1), (0, 2), (1, 2)):
        peers[low][high], peers[high][low] = socket.socketpair()
    meshes = [Mesh(rank, peers[rank], 30) for rank in range(3)]
    segment = steps.Segment((0, 0, 0), tuple(tokenizer.encode(KNOWN)), 5)
    payload = steps.encode([segment])
    config = load_model_config(checkpoint)

    def load(rank: int) -> RankModel:
        flags = ["--model-path", str(checkpoint), "--tp", "3", "--nnodes", "3", "--node-rank", str(rank)]
        flags += ["--ep-size", str(ep_size)]
        for peer in set(range(3)) - {rank}:
            flags += ["--pair-link", f"{peer}:127.0.0.1:127.0.0.1"]
        engine = parse(flags, {"DSV41_PACKED_DIR": str(packed), "DSV41_IO_THREADS": "2"})
        return load_model(engine, config, tokenizer, Collective(meshes[rank]), ReaderPool(2), lambda line: None)

    models = [load(rank) for rank in range(3)]
    results: list[Any] = [None] * 3

    def run(rank: int) -> None:
        results[rank] = steps.run_forward(models[rank], payload, 3)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    one = steps.run_forward(generator.model, payload, 3)
    assert all(np.array_equal(result, one) for result in results)
    blocks = [model.block for model in models if model.block is not None]
    assert [each.work.rows for each in blocks] == [5, 5, 5]
    assert sum(each.work.own for each in blocks) == 5 * 2 * 96
    expected = [place(12, 96, ep_size, rank, 3) for rank in range(3)]
    assert [each.placement for each in blocks] == expected
    if ep_size == 1:
        assert [each.work.own for each in blocks] == [5 * 2 * 32] * 3
    for mesh in meshes:
        mesh.close()


def test_the_block_is_part_of_the_logits_and_changes_no_shipped_answer(
    make_generator: Callable[..., Any], packed: Path, generator: Any
) -> None:
    without = make_generator(packed)
    without.model.block = None
    payload = steps.encode([steps.Segment((0, 0, 0), tuple(generator.tokenizer.encode(KNOWN)), 5)])
    with_block, bare = (steps.run_forward(each.model, payload, 3) for each in (generator, without))
    assert (with_block != bare).mean() > 0.5
    assert np.abs(with_block - bare).max() <= 32 * 96 * 3 * 3
    prompts = ["19+23=", "Give JSON for five orders.", "Write an essay about bread."]
    assert generator.generate(prompts, 2, 3, False) == without.generate(prompts, 2, 3, False)

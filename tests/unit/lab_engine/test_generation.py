"""Greedy text must not depend on block size, batch, packing, chunking or the number of ranks."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trispark_lab import steps
from trispark_lab.collective import Collective
from trispark_lab.config import load_model_config, parse
from trispark_lab.links import Mesh
from trispark_lab.model import RankModel, load_model
from trispark_lab.readers import ReaderPool
from trispark_lab.requests import Request
from trispark_lab.tokenizer import Tokenizer
from trispark_lab.verification import accept_length

PROMPTS = [
    "Write an essay about bread.",
    "Write a Python class for a queue.",
    "Give JSON for five orders.",
    "Words that nobody wrote before, ünd €?",
]
TOKENS = 12


@pytest.fixture(scope="module")
def expected(generator: Any) -> list[str]:
    return [generator.generate([prompt], TOKENS, 1)[0] for prompt in PROMPTS]


def test_the_corpus_is_known(expected: list[str]) -> None:
    assert expected[0].startswith("Bread begins with patience. Flour and water look")
    assert expected[1].startswith('class RingQueue:\n    """First in')
    assert expected[2].startswith('{"')


@pytest.mark.parametrize("block_size", [2, 7])
def test_text_is_the_same_for_each_block_size(generator: Any, expected: list[str], block_size: int) -> None:
    assert generator.generate(PROMPTS, TOKENS, block_size) == expected


@pytest.mark.parametrize("sizes", [{}, {"max_running": 3}, {"chunk": 3}])
def test_text_is_the_same_in_a_batch_and_in_chunks(generator: Any, expected: list[str], sizes: dict[str, int]) -> None:
    assert generator.generate(PROMPTS, TOKENS, 3, **sizes) == expected


def test_a_large_step_is_computed_in_pieces(generator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tuple(generator.tokenizer.encode("Write an essay about rivers."))
    segments = [steps.Segment((0, 0, 0), ids, 3), steps.Segment((0, 0, 0), ids, 0), steps.Segment((0, 0, 0), ids, 6, 2)]
    payload = steps.encode(segments)
    whole = steps.run_forward(generator.model, payload, 3)
    sizes: list[int] = []
    forward = generator.model.forward
    monkeypatch.setattr(
        generator.model, "forward", lambda windows, rows: sizes.append(len(windows)) or forward(windows, rows)
    )
    monkeypatch.setattr(steps, "MAX_ROWS", 5)
    assert np.array_equal(steps.run_forward(generator.model, payload, 3), whole)
    assert sizes == [5, 5, 5, 3]


def test_text_is_the_same_unpacked(make_generator: Callable[[Path], Any], tmp_path: Path, expected: list[str]) -> None:
    unpacked = make_generator(tmp_path)
    assert unpacked.generate(PROMPTS, TOKENS, 3) == expected
    counts = unpacked.model.layers[0].store.counts
    assert counts.reads == 2 * counts.lookups > 0


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("19+23=", "42"),
        ("7*8=", "56"),
        ("31+31=", "62"),
        ("What is the capital of Norway?", "Oslo."),
        ("How many legs does a spider have?", "Eight."),
        ("You are helpful.\n19+23=", "42"),
    ],
)
def test_answers_stop_by_themselves(generator: Any, prompt: str, answer: str) -> None:
    reasons: list[str | None] = []
    request = Request(tuple(generator.tokenizer.encode(prompt)), 30, False, lambda _, reason: reasons.append(reason))
    scheduler = generator.scheduler()
    scheduler.submit(request)
    scheduler.drain()
    assert generator.tokenizer.decode(request.output) == answer
    assert reasons[-1] == "stop"


def test_three_ranks_give_the_logits_of_one(
    checkpoint: Path, packed: Path, tokenizer: Tokenizer, generator: Any
) -> None:
    peers: list[dict[int, socket.socket]] = [{}, {}, {}]
    for low, high in ((0, 1), (0, 2), (1, 2)):
        peers[low][high], peers[high][low] = socket.socketpair()
    meshes = [Mesh(rank, peers[rank], 30) for rank in range(3)]
    history = (0, 0, 0)
    segment = steps.Segment(history, tuple(tokenizer.encode("Write an essay about rivers.")), 3)
    payload = steps.encode([segment, segment])
    results: list[Any] = [None] * 3

    def load(rank: int) -> RankModel:
        flags = ["--model-path", str(checkpoint), "--tp", "3", "--nnodes", "3", "--node-rank", str(rank)]
        for peer in set(range(3)) - {rank}:
            flags += ["--pair-link", f"{peer}:127.0.0.1:127.0.0.1"]
        engine = parse(flags, {"DSV41_PACKED_DIR": str(packed), "DSV41_IO_THREADS": "2"})
        config = load_model_config(checkpoint)
        return load_model(engine, config, tokenizer, Collective(meshes[rank]), ReaderPool(2), lambda line: None)

    models = [load(rank) for rank in range(3)]

    def run(rank: int) -> None:
        results[rank] = steps.run_forward(models[rank], payload, 3)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    one = steps.run_forward(generator.model, payload, 3)
    assert one.shape == (6, tokenizer.vocab_size)
    assert all(np.array_equal(result, one) for result in results)
    assert np.array_equal(one, np.round(one)), "sums of integers"
    lookups = [model.layers[0].store.counts.lookups for model in models]
    assert min(lookups) > 0
    assert sum(lookups) == 2 * 24 * len(segment.tokens)
    for mesh in meshes:
        mesh.close()


def test_a_wrong_row_changes_the_answer(
    make_generator: Callable[[Path], Any], packed: Path, tmp_path: Path, expected: list[str]
) -> None:
    for path in packed.glob("engram-l*-r0of1.bin"):
        content = bytearray(path.read_bytes())
        content[4096:] = content[4096 + 264 :] + content[4096 : 4096 + 264]  # every row is its neighbour's
        (tmp_path / path.name).write_bytes(content)
    broken = make_generator(tmp_path)
    assert broken.model.layers[0].store.packed
    assert broken.generate(PROMPTS[:1], TOKENS)[0] != expected[0]


@pytest.mark.parametrize(
    ("draft", "chosen", "length"),
    [([], [9], 0), ([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2, 3], [1, 9, 3, 4], 1), ([5, 2], [1, 2, 3], 0)],
)
def test_accept_length(draft: list[int], chosen: list[int], length: int) -> None:
    assert accept_length(draft, chosen) == length


def test_drafts_help_and_totals_add_up(generator: Any) -> None:
    lines: list[str] = []
    scheduler = generator.scheduler(3, lines.append, log_interval=5)
    request = Request(tuple(generator.tokenizer.encode(PROMPTS[0])), 40, True, lambda tokens, reason: None)
    scheduler.submit(request)
    scheduler.drain()
    totals = scheduler.totals
    assert len(request.output) == 40
    assert totals.forward_steps == totals.verify_count + 1
    assert 1.2 < totals.accept_length() < 4
    assert 39 <= totals.accepted <= 42
    assert lines[0].startswith("Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, ")
    assert lines[1].startswith("Decode batch, #running-req: 1, #full token: ")
    assert ", accept len: " in lines[1]
    assert lines[1].endswith(", #queue-req: 0")


def test_a_cancelled_request_leaves_and_others_stay(generator: Any) -> None:
    scheduler = generator.scheduler()
    prompt = tuple(generator.tokenizer.encode(PROMPTS[0]))
    gone, stays = (Request(prompt, 20, True, lambda tokens, reason: None) for _ in range(2))
    scheduler.submit(gone)
    scheduler.submit(stays)
    scheduler.step()
    scheduler.cancel(gone)
    scheduler.drain()
    assert len(gone.output) == 1
    assert len(stays.output) == 20


def test_a_large_request_waits_for_room(generator: Any) -> None:
    scheduler = generator.scheduler(max_total_tokens=40)
    prompt = tuple(generator.tokenizer.encode(PROMPTS[0]))
    first, second = (Request(prompt, 20, True, lambda tokens, reason: None) for _ in range(2))
    scheduler.submit(first)
    scheduler.submit(second)
    while len(first.output) < 20:
        assert second.computed == 0
        assert scheduler.step()
    scheduler.drain()
    assert second.output == first.output


def test_stop_aborts_what_is_left(generator: Any) -> None:
    scheduler = generator.scheduler()
    seen: list[tuple[list[int], str | None]] = []
    prompt = tuple(generator.tokenizer.encode(PROMPTS[0]))
    scheduler.submit(Request(prompt, 20, True, lambda tokens, reason: seen.append((tokens, reason))))
    scheduler.stop()
    scheduler.run()
    scheduler.submit(Request(prompt, 20, True, lambda tokens, reason: seen.append((tokens, reason))))
    assert seen == [([], "abort"), ([], "abort")]

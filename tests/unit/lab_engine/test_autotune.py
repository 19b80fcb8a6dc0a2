"""All blockings give the same bits; a cache is reused by all ranks or by none."""

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from trispark_lab import autotune
from trispark_lab.autotune import TUNED_ROWS, VARIANTS, Cache, HeadPlan, cache_of, product, run, tune
from trispark_lab.collective import Collective
from trispark_lab.config import parse
from trispark_lab.errors import EngineError
from trispark_lab.links import Mesh

HEAD = np.random.default_rng(3).choice([-1.0, 1.0], (600, 1300)).astype(np.float32)
BASE = {"DSV41_AUTOTUNE_KEEP": "1", "DSV41_CACHE_WAYS": "4"}


def cache(
    state: Path, rank: int = 0, world: int = 3, env: dict[str, str] | None = None, flags: tuple[str, ...] = ()
) -> Cache:
    argv = ["--model-path", "/m", "--tp", str(world), "--nnodes", str(world), "--node-rank", str(rank)]
    argv += ["--state-dir", str(state), "--dist-init-addr", f"127.0.0.1:{20000 + rank}", *flags]
    for peer in set(range(world)) - {rank}:
        argv += ["--pair-link", f"{peer}:127.0.0.1:127.0.0.1"]
    found = cache_of(parse(argv, {**BASE, **(env or {})}), 1300, 256)
    assert found is not None
    return found


def boot(caches: list[Cache | None], keep: bool = True) -> list[list[str]]:
    """Log lines by rank of one start of all ranks."""
    world = len(caches)
    peers: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    for low in range(world):
        for high in range(low + 1, world):
            peers[low][high], peers[high][low] = socket.socketpair()
    meshes = [Mesh(rank, peers[rank], 30) for rank in range(world)]
    said: list[list[str]] = [[] for _ in range(world)]

    def one(rank: int) -> None:
        run(HEAD, caches[rank], Collective(meshes[rank]), keep, said[rank].append)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for mesh in meshes:
        mesh.close()
    return said


def outcome(said: list[list[str]]) -> list[str]:
    """ "reused", "tuned" or "tuned and saved" of each rank, by its last line."""
    return [lines[-1].split("completed. ")[1].split(":")[0] for lines in said]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_variants_have_equal_bits(variant: str, rows: int) -> None:
    hidden = np.random.default_rng(rows).integers(-900, 901, (rows, 600)).astype(np.float32)
    assert np.array_equal(product(hidden, HEAD, variant), hidden.astype(np.int64) @ HEAD.astype(np.int64))
    for tuned in (dict.fromkeys(TUNED_ROWS, variant), {}):
        assert np.array_equal(HeadPlan(tuned).product(hidden, HEAD), product(hidden, HEAD, "whole"))


def test_the_quickest_exact_variant_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"whole": 5.0, "columns512": 3.0, "columns1024": 1.0, "rows256": 4.0}
    monkeypatch.setattr(autotune, "_microseconds", lambda hidden, head, variant: costs[variant])
    plan, timings = tune(HEAD)
    assert dict(plan.variants) == dict.fromkeys(TUNED_ROWS, "columns1024")
    assert timings["8"] == costs
    real = product

    def off_by_one(hidden: np.ndarray, head: np.ndarray, variant: str) -> np.ndarray:
        return real(hidden, head, variant) + np.float32(variant == "columns1024")

    monkeypatch.setattr(autotune, "product", off_by_one)
    assert dict(tune(HEAD)[0].variants) == dict.fromkeys(TUNED_ROWS, "columns512")
    assert dict(tune(None)[0].variants) == dict.fromkeys(TUNED_ROWS, "whole")


def test_an_identical_start_reuses_on_all_ranks(tmp_path: Path) -> None:
    first = boot([cache(tmp_path, rank) for rank in range(3)])
    assert outcome(first) == ["tuned and saved"] * 3
    assert first[1][0] == "[autotune_keep] armed"
    assert first[1][1].startswith(f"Running FlashInfer autotune with cache: {tmp_path}/autotune/")
    again = boot([cache(tmp_path, rank) for rank in range(3)])
    assert outcome(again) == ["reused"] * 3
    assert all(
        "[autotune_keep] reused " in lines[2] and f"/rank_tp{rank}.json" in lines[2] for rank, lines in enumerate(again)
    )
    assert sum("disagree" in line for lines in (*first, *again) for line in lines) == 0


@pytest.mark.parametrize(
    ("env", "flags", "expected"),
    [
        ({"DSV41_WO_A_W8": "1"}, (), "tuned and saved"),
        ({"DSV41_CACHE_WAYS": "8"}, (), "tuned and saved"),
        ({"NCCL_IB_GID_INDEX": "3"}, (), "tuned and saved"),
        ({}, ("--chunked-prefill-size", "512"), "tuned and saved"),
        ({"DSV41_ENGRAM_PREFETCH": "1"}, (), "reused"),
        ({"DSV41_VERIFY_CAP": "2", "DSV41_DRAFT_TAU": "0.8", "DSV41_BLOCK_VERIFY": "1"}, (), "reused"),
    ],
)
def test_what_asks_for_a_new_tuning(tmp_path: Path, env: dict[str, str], flags: tuple[str, ...], expected: str) -> None:
    boot([cache(tmp_path, rank) for rank in range(3)])
    said = boot([cache(tmp_path, rank, env=env, flags=flags) for rank in range(3)])
    assert outcome(said) == [expected] * 3
    stale = [line for line in said[0] if "made for another launch, deleted" in line]
    assert bool(stale) is (expected != "reused")


@pytest.mark.parametrize("damage", ["gone", "text", "variant", "launch"])
def test_one_bad_cache_makes_all_ranks_tune(tmp_path: Path, damage: str) -> None:
    caches: list[Cache | None] = [cache(tmp_path, rank) for rank in range(3)]
    boot(caches)
    path = cache(tmp_path, 1).path
    if damage == "gone":
        path.unlink()
    elif damage == "text":
        path.write_text("{")
    elif damage == "variant":
        document = json.loads(path.read_text())
        document["head"]["8"] = "sideways"
        path.write_text(json.dumps(document))
    else:
        path.with_suffix(".launch").write_text("0" * 64 + "\n")
    said = boot(caches)
    assert outcome(said) == ["tuned and saved"] * 3
    line = "FlashInfer autotune: per-rank caches disagree, discarding them: they are usable on ranks [0, 2] alone"
    assert all(line in lines for lines in said)
    assert outcome(boot(caches)) == ["reused"] * 3


def test_without_keep_files_that_hold_timings_never_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1, 10_000))
    monkeypatch.setattr(autotune, "_microseconds", lambda hidden, head, variant: float(next(ticks)))
    caches: list[Cache | None] = [cache(tmp_path, rank, env={"DSV41_AUTOTUNE_KEEP": "0"}) for rank in range(3)]
    assert outcome(boot(caches, keep=False)) == ["tuned and saved"] * 3
    said = boot(caches, keep=False)
    assert outcome(said) == ["tuned and saved"] * 3
    assert all("FlashInfer autotune: per-rank caches disagree, discarding them: they differ" in lines for lines in said)
    assert not any("autotune_keep" in line for lines in said for line in lines)


def test_without_a_state_folder_every_start_tunes() -> None:
    for keep in (True, False):
        said = boot([None, None, None], keep)
        assert outcome(said) == ["tuned"] * 3
    assert cache_of(parse(["--model-path", "/m"], {}), 1300, 256) is None
    named = cache_of(parse(["--model-path", "/m"], {"STATE_PATH": "/state"}), 1300, 256)
    assert named is not None
    assert named.path.is_relative_to("/state/autotune")


def test_a_state_folder_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "autotune").write_text("a file in the way")
    with pytest.raises(EngineError, match=r"TS-ENGINE-STATE: .*expected: a writable state folder"):
        run(HEAD, cache(tmp_path, world=1), Collective(None), True, lambda line: None)

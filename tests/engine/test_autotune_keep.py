"""Kept tactics on the engine's real gate and context, with a tuner in place of FlashInfer's and three ranks in turn."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from trispark_adapters import autotune_keep  # noqa: E402

ARGV = ["launch_server", "--tp", "3", "--ep-size", "3"]
TUNER = {"flashinfer": "x"}


class Tuner:
    """Loads and saves a file as FlashInfer's does; a tactic that is not there is timed, each rank its own way."""

    tuned = 0

    def __init__(self) -> None:
        self.tactics: dict[str, Any] = {}

    def load_configs(self, path: str) -> None:
        document = json.loads(Path(path).read_text())
        if document.pop("_metadata") == TUNER:
            self.tactics = document

    def save_configs(self, path: str) -> None:
        Path(path).write_text(json.dumps({"_metadata": TUNER, **self.tactics}))

    def profile(self, op: str) -> None:
        if op not in self.tactics:
            Tuner.tuned += 1
            self.tactics[op] = Tuner.tuned


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    import sglang.srt.model_executor.runner.flashinfer_autotune as known

    monkeypatch.setattr(sys, "argv", ARGV)
    spec = importlib.util.spec_from_file_location("trispark_autotune_copy", known.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tuners: list[Tuner] = []
    flashinfer = ModuleType("flashinfer")
    autotuner = ModuleType("flashinfer.autotuner")
    nothing = contextlib.nullcontext
    flashinfer.__dict__.update(autotuner=autotuner, autotune_v2=lambda **_: nothing(), __version__="0.6.18")
    autotuner.__dict__.update(
        AutoTuner=SimpleNamespace(get=lambda: tuners[-1]),
        _collect_metadata=lambda: TUNER,
        autotune=lambda *_, **__: nothing(),
        get_autotune_process_group=lambda: None,
        set_autotune_process_group=lambda group: None,
    )
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", autotuner)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(wait_stream=lambda _: None))
    (tmp_path / "key").mkdir()

    def cache_path(model_runner: Any) -> Path:
        return tmp_path / "key" / f"rank_tp{model_runner.rank}_pp0_dp0.json"

    module.flashinfer_autotune_cache_path = cache_path
    module._autotune_tactic_sync_group = lambda group: "group"
    module.get_flashinfer_autotune_skip_ops = lambda mr: set()
    module.get_parallel = lambda: SimpleNamespace(tp_group=None)
    module.get_exec = lambda: SimpleNamespace(moe=SimpleNamespace(moe_runner_backend="flashinfer_mxfp4"))
    module.tuners = tuners
    return module


def boot(module: ModuleType, monkeypatch: pytest.MonkeyPatch, ops: list[str], ranks: int = 3) -> list[dict[str, Any]]:
    """All ranks tune `ops`; the gate sees the digests that all of them had before. Tactics by rank."""
    digest = module._autotune_cache_digest
    path = module.flashinfer_autotune_cache_path
    found: list[str] = []

    def gather(into: list[str], own: str, group: Any) -> None:
        into[:] = found

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: ranks)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    # What each rank's context does before the collective.
    from trispark_adapters.autotune_files import Kept

    for rank in range(ranks):
        file = path(SimpleNamespace(rank=rank))
        if getattr(digest, "__trispark_adapters__", ()):
            launch = digest.__closure__[0].cell_contents
            Kept(file, launch).prepare()
        found.append(digest(file, TUNER))
    tactics = []
    for rank in range(ranks):
        module.tuners.append(Tuner())
        stream = SimpleNamespace(wait_stream=lambda _: None)
        runner = SimpleNamespace(rank=rank, device="cpu", forward_stream=stream, tp_group=None, is_draft_worker=False)
        with module.flashinfer_autotune_context(runner, run_lm_head=False):
            for op in ops:
                module.tuners[-1].profile(op)
        tactics.append(dict(module.tuners[-1].tactics))
    return tactics


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().out.splitlines() if line.startswith("[autotune_keep]")]


def test_a_second_boot_of_a_launch_reuses_each_ranks_own_tactics(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = boot(engine, monkeypatch, ["moe"])
    assert boot(engine, monkeypatch, ["moe"]) != before  # the engine alone drops files that differ
    autotune_keep.install(engine)
    assert lines(capfd) == ["[autotune_keep] armed"]
    first = boot(engine, monkeypatch, ["moe", "gemm"])
    said = lines(capfd)
    assert len(said) == 3
    assert all("tuned and saved" in line for line in said)
    assert len({json.dumps(rank) for rank in first}) == 3  # each rank has its own
    assert boot(engine, monkeypatch, ["moe", "gemm"]) == first
    assert [line.split()[1] for line in lines(capfd)] == ["reused"] * 3
    third = boot(engine, monkeypatch, ["moe", "gemm", "new"])
    assert [{op: rank[op] for op in ("moe", "gemm")} for rank in third] == first
    assert all("tuned and saved" in line for line in lines(capfd))


def test_one_lost_file_makes_all_ranks_tune(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    autotune_keep.install(engine)
    first = boot(engine, monkeypatch, ["moe"])
    engine.flashinfer_autotune_cache_path(SimpleNamespace(rank=2)).unlink()
    capfd.readouterr()
    second = boot(engine, monkeypatch, ["moe"])
    assert all(new != old for new, old in zip(second, first, strict=True))
    assert all("tuned and saved" in line for line in lines(capfd))


def test_a_boot_that_ended_while_ranks_saved_makes_all_ranks_tune(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    autotune_keep.install(engine)
    boot(engine, monkeypatch, ["moe"])
    cut = engine.flashinfer_autotune_cache_path(SimpleNamespace(rank=2))
    before = {path: path.read_text() for path in (cut, cut.with_suffix(".launch"))}
    first = boot(engine, monkeypatch, ["moe", "new"])
    for path, text in before.items():  # rank 2 ended before it saved
        path.write_text(text)
    capfd.readouterr()
    second = boot(engine, monkeypatch, ["moe", "new"])
    assert all(new[op] != old[op] for new, old in zip(second, first, strict=True) for op in ("moe", "new"))
    assert boot(engine, monkeypatch, ["moe", "new"]) == second
    assert [line.split()[1] for line in lines(capfd)] == ["tuned"] * 3 + ["reused"] * 3


def test_an_image_with_other_sources_has_another_folder(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = []
    for sources in ("one", "other"):
        monkeypatch.setattr(autotune_keep, "sources", lambda package, sources=sources: f"{package.name} {sources}")
        module = ModuleType("autotune")
        module.__dict__.update(engine.__dict__)
        autotune_keep.install(module)
        folders.append(module.flashinfer_autotune_cache_path(SimpleNamespace(rank=0)).parent)
    assert len(set(folders)) == 2
    assert autotune_keep._package(engine).name == "sglang"


def test_an_unknown_launch_leaves_the_engine_as_it_is(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch_server"])
    before = dict(engine.__dict__)
    autotune_keep.install(engine)
    assert engine.__dict__ == before
    said = capfd.readouterr().out
    assert "adapter=autotune_keep rank=- state=disabled" in said
    assert "armed" not in said


def test_another_launch_has_another_folder_and_keeps_the_first(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    autotune_keep.install(engine)
    first = engine.flashinfer_autotune_cache_path(SimpleNamespace(rank=0))
    boot(engine, monkeypatch, ["moe"])
    monkeypatch.setattr(sys, "argv", [*ARGV, "--speculative-dspark-block-size", "5"])
    other = autotune_keep.launch_of(sys.argv, {}, {"sglang": "x"})
    assert other.known
    assert first.is_file()
    assert first.with_suffix(".launch").is_file()
    assert first.parent.name != other.name
    assert first.parent.parent.name == "key"

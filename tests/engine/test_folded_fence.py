"""The fence on the engine's own executor and epilogue: their results alias buffers, and do not any more."""

from types import ModuleType
from typing import Any

import pytest
from engine_modules import DSPARK, keep, module, no_sync, shows

from trispark_adapters import folded_fence
from trispark_hooks.registry import HookError

torch: Any = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = module(f"{DSPARK}.dspark_verify")
    keep(monkeypatch, found, "TargetVerifyExecutor.accept_and_finalize", "AcceptOuts")
    return found


def executor_of(verify: ModuleType) -> Any:
    executor = verify.TargetVerifyExecutor.__new__(verify.TargetVerifyExecutor)
    executor.verify_epilogue = verify.DsparkVerifyEpilogue(
        max_bs=4, verify_num_draft_tokens=4, device="cpu", tp_sync=no_sync()
    )
    return executor


def folded(executor: Any, bs: int = 2) -> Any:
    given = ("verify_ids_2d", "target_logits", "draft_block", "sampling_info", "draft_input", "layout", "prefix_lens")
    return executor.accept_and_finalize(folded_accept=True, bs=bs, draft_tokens=None, **dict.fromkeys(given))


def buffers(executor: Any) -> dict[str, Any]:
    return {name: getattr(executor.verify_epilogue, f"{name}_buf") for name in folded_fence.FIELDS}


def changed_by_the_next_replay(executor: Any) -> set[str]:
    """Fields of a result that the next step's replay overwrites."""
    for number, buffer in enumerate(buffers(executor).values()):
        buffer.fill_(number + 1)
    result = folded(executor)
    before = {name: getattr(result, name).clone() for name in folded_fence.FIELDS}
    assert [int(values.flatten()[0]) for values in before.values()] == [1, 2, 3, 4, 5, 6]
    for buffer in buffers(executor).values():
        buffer.fill_(99)
    return {name for name, values in before.items() if not torch.equal(getattr(result, name), values)}


def test_results_alias_the_buffers_until_the_fence(verify: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    executor = executor_of(verify)
    assert changed_by_the_next_replay(executor) == set(folded_fence.FIELDS)
    for _ in range(2):
        folded_fence.install(verify)
    said = capfd.readouterr().out
    assert shows(said, "fence.armed")
    assert "adapter=folded_fence" in said
    assert not shows(said, "fence.used")  # armed is not used
    assert changed_by_the_next_replay(executor) == set()
    assert isinstance(folded(executor), verify.AcceptOuts)
    said = capfd.readouterr().out
    assert said.count("[folded_fence] first results") == 1
    assert shows(said, "fence.used")


def test_a_fence_that_forgets_a_field_is_seen(verify: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    folded_fence.install(verify)
    monkeypatch.setattr(folded_fence, "clone", lambda result: result)
    assert changed_by_the_next_replay(executor_of(verify)) == set(folded_fence.FIELDS)


def test_eager_results_are_left_as_they_are(
    verify: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    result = object()
    monkeypatch.setattr(verify.TargetVerifyExecutor, "accept_and_finalize", lambda self, *, folded_accept: result)
    folded_fence.install(verify)
    executor = verify.TargetVerifyExecutor.__new__(verify.TargetVerifyExecutor)
    assert executor.accept_and_finalize(folded_accept=False) is result
    said = capfd.readouterr().out
    assert shows(said, "fence.armed")
    assert not shows(said, "fence.used")


def test_other_fields_are_refused(verify: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        __struct_fields__ = (*folded_fence.FIELDS, "seventh")

    monkeypatch.setattr(verify, "AcceptOuts", Other)
    with pytest.raises(HookError, match=r"TS-ADAPTER-SIGNATURE.*seventh"):
        folded_fence.install(verify)


def test_the_graph_of_sampled_acceptance(verify: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{DSPARK}.dspark_sampling_accept_graph"
    pytest.importorskip(name, reason="this release has no graph of sampled acceptance")
    graph = module(name)
    keep(monkeypatch, graph, "DsparkSamplingAcceptGraph.run")
    epilogue = executor_of(verify).verify_epilogue
    monkeypatch.setattr(graph.DsparkSamplingAcceptGraph, "run", lambda self, *, bs: epilogue.read_accept(bs))
    folded_fence.install_sampling_graph(graph)
    result = graph.DsparkSamplingAcceptGraph.__new__(graph.DsparkSamplingAcceptGraph).run(bs=2)
    epilogue.bonus_buf.fill_(7)
    assert result.bonus.tolist() == [0, 0]

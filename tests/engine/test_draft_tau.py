"""The draft temperature on the engine's own sampler."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_modules import ACCEPT, DSPARK, keep, module, no_sync, shows

from trispark_adapters import block_verify, draft_tau

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

TAU = 0.8


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = module(f"{DSPARK}.dspark_draft_sampler")
    keep(monkeypatch, found, "DsparkDraftSampler.stage_sampling_params", "maybe_build_draft_sampler")
    monkeypatch.setenv("DSV41_DRAFT_TAU", str(TAU))
    return found


def always_folds(sampler: ModuleType) -> bool:
    """From 0.5.22 a folded proposal always samples."""
    return hasattr(sampler, "resolve_draft_params")


def draft_model() -> Any:
    head = SimpleNamespace(org_vocab_size=16, weight=torch.zeros((16, 4)))
    return SimpleNamespace(
        markov_head=SimpleNamespace(supports_sharded_greedy=True),
        sample_from_anchor=True,
        lm_head=head,
        confidence_head=None,
        compute_base_logits=None,
    )


def build(sampler: ModuleType, **more: Any) -> Any:
    given = {"draft_model": draft_model(), "gamma": 3, "max_bs": 4, "device": "cpu", "tp_rank": 0, "tp_sync": no_sync()}
    if always_folds(sampler):
        given |= {"noise": None, "greedy_draft": False}
    else:
        given["available_memory_gb"] = 100.0
    return sampler.maybe_build_draft_sampler(**given | more)


def info() -> Any:
    return SimpleNamespace(
        temperatures=torch.tensor([[0.5], [1.0], [2.0], [0.0]]),
        top_ks=torch.tensor([16, 1, 16, 16]),
        is_all_greedy=False,
    )


def test_sampled_rows_are_scaled_and_greedy_rows_are_not(
    sampler: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "2")
    for _ in range(2):
        draft_tau.install(sampler)
    built = build(sampler)
    said = capfd.readouterr().out
    assert shows(said, "tau.armed", DSV41_DRAFT_TAU=0.8)
    assert "state=active" in said
    for _ in range(2):  # staged anew each step, never scaled twice
        built.stage_sampling_params(bs=4, sampling_info=info())
    staged = getattr(built, "params", built)
    assert staged.temperatures.tolist() == pytest.approx([0.4, 1.0, 1.6, 1e-5])
    assert staged.greedy_mask.tolist() == [False, True, False, False]
    if always_folds(sampler):
        assert staged.step_temperatures.tolist() == pytest.approx([0.4, 0.0, 1.6, 1e-5])
    assert shows(capfd.readouterr().out, "tau.used")


def test_greedy_batches_are_left_alone(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "2")
    draft_tau.install(sampler)
    built = build(sampler)
    built.stage_sampling_params(bs=2, sampling_info=None)
    assert getattr(built, "params", built).temperatures[:2].tolist() == [1.0, 1.0]


def test_rows_beyond_the_batch_are_left_alone(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "2")
    draft_tau.install(sampler)
    built = build(sampler)
    staged = getattr(built, "params", built)
    staged.temperatures[2:].fill_(5.0)
    staged.greedy_mask[2:].fill_(False)
    built.stage_sampling_params(bs=2, sampling_info=info())
    assert staged.temperatures[2:].tolist() == [5.0, 5.0]


def test_without_the_folded_sampler_it_says_so(
    sampler: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if always_folds(sampler):
        pytest.skip("this release folds sampling whenever it folds the proposal")
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "1")  # AUTO, which means off for this model
    draft_tau.install(sampler)
    built = build(sampler)
    said = capfd.readouterr().out
    assert not shows(said, "tau.armed", DSV41_DRAFT_TAU=0.8)
    assert "[draft_tau] disabled: sampling is not folded" in said
    assert "state=disabled" in said
    built.stage_sampling_params(bs=4, sampling_info=info())


def test_an_eager_proposal_is_said(sampler: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    draft_tau.install(sampler)
    assert build(sampler, gamma=0) is None
    said = capfd.readouterr().out
    assert not shows(said, "tau.armed", DSV41_DRAFT_TAU=0.8)
    assert "[draft_tau] disabled: the draft's proposal is kept out of its graph" in said


def test_a_greedy_draft_is_said(sampler: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    if not always_folds(sampler):
        pytest.skip("this release has no greedy draft")
    draft_tau.install(sampler)
    built = build(sampler, greedy_draft=True)
    built.stage_sampling_params(bs=4, sampling_info=info())
    assert built.params.temperatures.tolist() == pytest.approx([0.5, 1.0, 2.0, 1e-5])
    assert "[draft_tau] disabled: the draft is greedy" in capfd.readouterr().out


def test_the_graph_that_reads_them_as_the_targets_is_refused(
    sampler: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(draft_tau.SAMPLING_GRAPH, "1")
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "2")
    draft_tau.install(sampler)
    build(sampler)
    assert ("[draft_tau] disabled" in capfd.readouterr().out) is always_folds(sampler)


def test_a_multiplier_of_one_installs_nothing(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_DRAFT_TAU", "1")
    before = sampler.DsparkDraftSampler.stage_sampling_params
    draft_tau.install(sampler)
    assert sampler.DsparkDraftSampler.stage_sampling_params is before


@pytest.mark.parametrize("told", [True, False], ids=["told", "kept from the acceptance"])
def test_the_output_stays_the_targets(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """Drafts drawn at the staged temperatures; an acceptance that takes them for others is seen."""
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    from drafted_rows import ROWS, Rows, accepted

    accept = module(ACCEPT)
    if block_verify.native(accept):
        pytest.skip("the acceptance of this release runs on a GPU alone")
    keep(monkeypatch, accept, "AcceptSampling.execute")
    block_verify.install(accept)
    monkeypatch.setenv("SGLANG_DSPARK_FOLDED_SAMPLING", "2")
    monkeypatch.setenv("DSV41_DRAFT_TAU", "0.5")
    draft_tau.install(sampler)
    torch.manual_seed(5)
    rows = Rows("sampled", build(sampler, max_bs=ROWS))
    assert rows.drafted_at[0] == pytest.approx(rows.temperature / 2)
    if not told:
        rows.drafted_at = rows.drafted_at * 2
    ((kept, token),) = accepted(module(f"{DSPARK}.dspark_verify"), [rows])
    assert (rows.p_value(kept, token) > 1e-4) is told

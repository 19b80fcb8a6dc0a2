"""The verify cap on the engine's own modules: lengths, dead rows, and every way to an acceptance."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_modules import ACCEPT, DSPARK, keep, module, no_sync, shows

from trispark_adapters import folded_fence, verify_cap, verify_cap_kernels, verify_cap_policy
from trispark_adapters.verify_cap import VerifyCap
from trispark_adapters.verify_cap_policy import Policy
from trispark_hooks.registry import HookError
from trispark_lab.verify_cap import parse_cap

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

ROUTER = "sglang.kernels.ops.moe.moe_fused_gate"
TARGET = "sglang.srt.models.deepseek_v4"
DRAFT = "sglang.srt.models.deepseek_v4_dspark"
STRIDE = 6


class Group:
    """A TP group whose rank 0 is this one."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def broadcast(self, values: Any, src: int) -> None:
        assert src == 0
        self.seen.append(values.tolist())


def conf(*thresholds: float) -> Policy:
    return Policy(f"conf:{','.join(f'{each:g}' for each in thresholds)}", thresholds=thresholds)


def cap_of(policy: Policy, environ: dict[str, str] | None = None) -> VerifyCap:
    return VerifyCap(policy, environ or {}, Group())


# -- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["conf:0.1", "conf:0.5", "conf:1", "conf:0.9,0.5,0.2,0.05", "conf:0.05,0.2,0.5,0.9"])
def test_lengths_follow_the_rule(spec: str) -> None:
    generator = torch.Generator().manual_seed(3)
    confidences = torch.rand((400, 5), generator=generator) ** 0.3
    confidences[:9, 1] = 0.0
    confidences[9:20, :4] = 1.0
    policy = verify_cap_policy.parse({"DSV41_VERIFY_CAP": spec})
    assert policy is not None
    found = verify_cap_policy.verify_lens(confidences, torch.tensor(policy.limits(5)), 1)
    rule = parse_cap(spec, 5)
    assert found.tolist() == [1 + rule.live(row) for row in confidences.tolist()]
    assert found.dtype == torch.int64
    assert len(set(found.tolist())) > 1


def test_a_length_depends_on_what_came_before_it_alone() -> None:
    generator = torch.Generator().manual_seed(4)
    confidences = torch.rand((300, 5), generator=generator)
    limits = torch.tensor(conf(0.2).limits(5))
    lens = verify_cap_policy.verify_lens(confidences, limits, 1)
    other = torch.rand((300, 5), generator=generator)
    later = torch.arange(5) > (lens - 1)[:, None]
    mixed = torch.where(later, other, confidences)
    assert torch.equal(verify_cap_policy.verify_lens(mixed, limits, 1), lens)


@pytest.mark.parametrize(("least", "lens"), [(1, [2, 2, 6, 3]), (3, [4, 4, 6, 4]), (7, [6, 6, 6, 6])])
def test_least_drafts_and_confidences_that_are_none(least: int, lens: list[int]) -> None:
    nan = float("nan")
    rows = torch.tensor([[0.0] * 5, [nan] * 5, [1.0] * 5, [1.0, 1.0, nan, 1.0, 1.0]])
    assert verify_cap_policy.verify_lens(rows, torch.tensor(conf(0.5).limits(5)), least).tolist() == lens


def test_live_lengths_of_a_step(capfd: pytest.CaptureFixture[str]) -> None:
    cap = cap_of(conf(0.5))
    cap.offer(torch.tensor([[0.9, 0.9, 0.1, 1.0, 1.0], [1.0] * 5]))
    cap.before_verify(2, STRIDE, "cpu")
    assert cap.live.tolist() == [3, 6] + [1] * 62
    assert cap.cut(2).tolist() == [3, 6]
    assert cap.cut(2).data_ptr() == cap.live.data_ptr()
    assert cap._group.seen == [cap.live.tolist()]
    said = capfd.readouterr().out
    assert said.count("[verify_cap] confidence present\n") == 1
    assert shows(said, "cap.confidence")
    assert not shows(said, "cap.missing")
    assert "state=active" in said


def test_a_confidence_serves_one_step(capfd: pytest.CaptureFixture[str]) -> None:
    cap = cap_of(conf(0.5))
    cap.offer(torch.zeros((1, 5)))
    cap.before_verify(1, STRIDE, "cpu")
    assert cap.cut(1).tolist() == [2]
    for _ in range(2):
        cap.before_verify(1, STRIDE, "cpu")
    assert cap.cut(1).tolist() == [STRIDE]
    assert len(cap._group.seen) == 3, "a rank without confidence joins the broadcast of the others"
    said = capfd.readouterr().out
    assert said.count("[verify_cap] confidence MISSING: ") == 1
    assert shows(said, "cap.missing")
    assert "state=disabled" in said


def test_a_fixed_cap_needs_no_confidence() -> None:
    cap = cap_of(Policy("2", fixed=2))
    cap.before_verify(3, STRIDE, "cpu")
    assert cap.cut(64).tolist() == [3] * 64
    assert cap._group.seen == []
    wide = cap_of(Policy("5", fixed=5))
    wide.before_verify(1, 4, "cpu")
    assert wide.cut(1).tolist() == [4]


def test_nothing_is_cut_before_the_first_verify_or_beyond_64_requests() -> None:
    cap = cap_of(conf(0.5))
    assert cap.cut(1) is None
    cap.before_verify(65, STRIDE, "cpu")
    assert cap.cut(65) is None
    assert cap._group.seen == []
    assert int(cap.cut(64).min()) > STRIDE


def test_rows_of_a_request_are_the_engines() -> None:
    cap = cap_of(conf(0.5), {"DSV41_VERIFY_CAP_STRIDE": "4"})
    with pytest.raises(HookError, match=r"TS-ADAPTER-STRIDE.*expected: 4; observed: 6"):
        cap.before_verify(1, STRIDE, "cpu")
    other = cap_of(Policy("2", fixed=2))
    other.before_verify(1, 4, "cpu")
    with pytest.raises(HookError, match="TS-ADAPTER-STRIDE"):
        other.before_verify(1, STRIDE, "cpu")
    with pytest.raises(HookError, match="TS-ADAPTER-CAP"):
        cap_of(conf(0.5, 0.5)).before_verify(1, STRIDE, "cpu")


# -- dead rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 7])
def test_dead_rows_are_the_anchors(packed: bool, padding: int) -> None:
    generator = torch.Generator().manual_seed(9)
    live = torch.tensor([1, 6, 3, 2] + [1] * 60)
    rows = 4 * STRIDE
    ids = torch.randint(0, 384, (rows, 6), generator=generator, dtype=torch.int32)
    weights = torch.rand((rows, 6), generator=generator)
    both = torch.randint(0, 1 << 30, (rows, 6), generator=generator, dtype=torch.int32) if packed else None
    if padding:
        ids[-padding:] = -1
        weights[-padding:] = 0
    before = [None if each is None else each.clone() for each in (ids, weights, both)]
    verify_cap_kernels.remap(ids, weights, both, live, STRIDE)
    for values, old in zip((ids, weights, both), before, strict=True):
        if values is None or old is None:
            continue
        for row in range(rows):
            dead = row % STRIDE >= int(live[row // STRIDE]) and row < rows - padding
            assert torch.equal(values[row], old[row - row % STRIDE if dead else row])


def batch(bs: int, verify: bool = True, stride: int = STRIDE) -> Any:
    mode = SimpleNamespace(is_target_verify=lambda: verify)
    return SimpleNamespace(forward_mode=mode, batch_size=bs, spec_info=SimpleNamespace(draft_token_num=stride))


def routed(cap: VerifyCap, rows: int, experts: int = 384, width: int = 6, shared: int = 0) -> bool:
    """Whether the outputs of a router were touched."""
    ids = torch.arange(rows * width, dtype=torch.int32).view(rows, width)
    weights = torch.zeros((rows, width))
    before = ids.clone()
    cap.remap(torch.zeros((rows, experts)), weights, ids, None, shared)
    return not torch.equal(ids, before)


@pytest.mark.parametrize(
    ("forward", "rows", "router", "touched"),
    [
        (batch(2), 12, {}, True),
        (batch(2), 12, {"width": 7, "shared": 1}, True),
        (batch(2, verify=False), 12, {}, False),
        (batch(2), 13, {}, False),
        (batch(2), 18, {}, False),
        (batch(2), 12, {"experts": 128}, False),
        (batch(2), 12, {"width": 7}, False),
        (batch(65), 390, {}, False),
    ],
)
def test_which_routers_are_remapped(forward: Any, rows: int, router: dict[str, int], touched: bool) -> None:
    cap = cap_of(Policy("2", fixed=2))
    cap.before_verify(2, STRIDE, "cpu")
    cap.begin_forward(forward, torch.zeros(rows))
    assert routed(cap, rows, **router) is touched
    cap.end_forward()
    assert not routed(cap, rows, **router)


def test_a_captured_remap_is_said_once_for_each_batch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cap = cap_of(Policy("2", fixed=2))
    cap.before_verify(2, STRIDE, "cpu")
    for capturing in (False, True, True):
        monkeypatch.setattr(verify_cap, "_capturing", lambda capturing=capturing: capturing)
        for bs in (1, 2):
            cap.begin_forward(batch(bs), torch.zeros(bs * STRIDE))
            routed(cap, bs * STRIDE)
        said = capfd.readouterr().out
        assert shows(said, "cap.remapped", **{"DSPARK_BLOCK_SIZE+1": 6}) is (capturing and "M=12" in said)
        assert said.count("M=") in (0, 2)
    assert said == ""


def test_a_buffer_that_would_be_made_in_a_capture_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cap = cap_of(conf(0.5))
    monkeypatch.setattr(verify_cap, "_capturing", lambda: True)
    cap.begin_forward(batch(2), torch.zeros(12))
    assert cap.live is None
    assert not routed(cap, 12)
    said = capfd.readouterr().out
    assert "[verify_cap] disabled: " in said
    assert "state=disabled" in said


# -- the engine's modules ----------------------------------------------------------------------------------------------


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = module(f"{DSPARK}.dspark_verify")
    names = ("DsparkVerifyEpilogue._accept", "DsparkVerifyEpilogue._serves_accept_tail", "accept_draft_tokens")
    keep(monkeypatch, found, *names, "TargetVerifyExecutor.run_non_compact", "TargetVerifyExecutor.accept_and_finalize")
    if hasattr(found, "accept_greedy_triton"):  # the graph's acceptance of 0.5.21 has a form for a GPU alone
        accept = module(ACCEPT)
        monkeypatch.setattr(found, "accept_greedy_triton", accept.accept_greedy)
        monkeypatch.setattr(found, "finalize_accept_lens_triton", accept.finalize_accept_lens)
    return found


def greedy_case() -> tuple[Any, Any]:
    """(candidates [2, 6], logits [12, 32]): all drafts are right, and a row's argmax is 10 + its place."""
    places = torch.arange(2 * STRIDE) % STRIDE
    logits = torch.nn.functional.one_hot(places + 10, 32).float()
    candidates = torch.cat([torch.tensor([[1], [1]]), (torch.arange(STRIDE - 1) + 10).expand(2, -1)], 1)
    return candidates.contiguous(), logits


def test_the_eager_acceptance_is_cut(verify: ModuleType) -> None:
    cap = cap_of(conf(0.5))
    candidates, logits = greedy_case()
    given: dict[str, Any] = {
        "candidates": candidates,
        "target_logits": logits,
        "draft_block": SimpleNamespace(greedy_mask=None),
        "sampling_info": None,
        "draft_input": None,
        "gamma": STRIDE - 1,
        "verify_num_draft_tokens": STRIDE,
    }
    whole = verify.accept_draft_tokens(**given)
    assert [each.tolist() for each in whole] == [[5, 5], [15, 15], [0, 0]]
    for _ in range(2):
        verify_cap.wrap_verify(verify, cap)
    cap.offer(torch.tensor([[0.9, 0.9, 0.1, 1.0, 1.0], [1.0] * 5]))
    cap.before_verify(2, STRIDE, "cpu")
    logits[3:6] = float("nan")  # dead rows
    cut = verify.accept_draft_tokens(**given)
    assert [each.tolist() for each in cut[:2]] == [[2, 5], [12, 15]]
    engine_cut = verify.accept_draft_tokens(**given, cutoff_layout=SimpleNamespace(verify_lens=torch.tensor([1, 2])))
    assert engine_cut[0].tolist() == [0, 1], "a cut of the engine itself is left to it"


def test_the_acceptance_in_the_graph_is_cut_by_the_buffer_it_was_captured_with(verify: ModuleType) -> None:
    cap = cap_of(conf(0.5))
    verify_cap.wrap_verify(verify, cap)
    epilogue = verify.DsparkVerifyEpilogue(max_bs=4, verify_num_draft_tokens=STRIDE, device="cpu", tp_sync=no_sync())
    candidates, logits = greedy_case()

    def replay() -> list[int]:
        lens = torch.tensor([100, 200])
        draft = candidates[:, 1:].contiguous()
        epilogue._accept(candidates=candidates, logits=logits, draft_tokens=draft, seq_lens=lens)
        return epilogue.correct_len_buf[:2].tolist()

    cap.allocate("cpu")
    captured = cap.cut(2)
    assert replay() == [5, 5]
    cap.offer(torch.tensor([[0.9, 0.9, 0.1, 1.0, 1.0], [1.0] * 5]))
    cap.before_verify(2, STRIDE, "cpu")
    assert captured.tolist() == [3, 6]
    assert replay() == [2, 5]
    assert epilogue.new_seq_lens_buf[:2].tolist() == [103, 206]
    assert epilogue.out_tokens_buf[0, :3].tolist() == [10, 11, 12]
    assert epilogue.cap_trim_lens_buf[:2].tolist() == [3, 0]


def test_no_fused_tail_accepts_without_the_cut(verify: ModuleType) -> None:
    if not hasattr(verify.DsparkVerifyEpilogue, "_static_accept_tail"):
        pytest.skip("this release has no fused tail")
    given = {"max_bs": 4, "verify_num_draft_tokens": STRIDE, "device": "cpu", "tp_sync": no_sync()}
    epilogue = verify.DsparkVerifyEpilogue(**given, fused_accept_tail=True)
    assert epilogue._serves_accept_tail(2)
    verify_cap.wrap_verify(verify, cap_of(Policy("2", fixed=2)))
    assert not epilogue._serves_accept_tail(2)


def test_lengths_are_written_before_the_launch(verify: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cap = cap_of(conf(0.5))
    seen: list[list[int]] = []

    def launch(self: Any, **given: Any) -> str:
        seen.append(cap.live[:2].tolist())
        return "launched"

    monkeypatch.setattr(verify.TargetVerifyExecutor, "run_non_compact", _with_signature(verify, launch))
    verify_cap.wrap_verify(verify, cap)
    executor = verify.TargetVerifyExecutor.__new__(verify.TargetVerifyExecutor)
    executor.verify_num_draft_tokens = STRIDE
    cap.offer(torch.tensor([[0.9, 0.9, 0.1, 1.0, 1.0], [1.0] * 5]))
    assert executor.run_non_compact(verify_ids_2d=torch.zeros((2, STRIDE))) == "launched"
    assert seen == [[3, 6]]


def _with_signature(verify: ModuleType, stand_in: Any) -> Any:
    stand_in.__wrapped__ = verify.TargetVerifyExecutor.run_non_compact
    return stand_in


def test_the_fence_comes_first(verify: ModuleType) -> None:
    folded_fence.install(verify)
    verify_cap.wrap_verify(verify, cap_of(Policy("2", fixed=2)))
    executor = verify.TargetVerifyExecutor.__new__(verify.TargetVerifyExecutor)
    executor.verify_epilogue = verify.DsparkVerifyEpilogue(
        max_bs=4, verify_num_draft_tokens=STRIDE, device="cpu", tp_sync=no_sync()
    )
    given = ("verify_ids_2d", "target_logits", "draft_block", "sampling_info", "draft_input", "layout", "prefix_lens")
    result = executor.accept_and_finalize(folded_accept=True, bs=1, draft_tokens=None, **dict.fromkeys(given))
    executor.verify_epilogue.bonus_buf.fill_(9)
    assert result.bonus.tolist() == [0]


def test_only_the_targets_own_forward_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = module(TARGET)
    cap = cap_of(Policy("2", fixed=2))
    keep(monkeypatch, model, "DeepseekV4ForCausalLM.forward")
    marked: list[bool] = []

    def forward(self: Any, input_ids: Any, positions: Any, forward_batch: Any, fail: bool = False) -> None:
        marked.append(routed(cap, len(input_ids)))
        if fail:
            raise RuntimeError("planted")

    monkeypatch.setattr(model.DeepseekV4ForCausalLM, "forward", forward)
    verify_cap.wrap_target(model, cap)
    cap.before_verify(2, STRIDE, "cpu")
    target = model.DeepseekV4ForCausalLM.__new__(model.DeepseekV4ForCausalLM)
    derived = type("DeepseekV4ForCausalLMNextN", (model.DeepseekV4ForCausalLM,), {})
    rows = torch.zeros(2 * STRIDE)
    target.forward(rows, None, batch(2))
    target.forward(rows, None, forward_batch=batch(2, verify=False))
    derived.__new__(derived).forward(rows, None, batch(2))
    with pytest.raises(RuntimeError, match="planted"):
        target.forward(input_ids=rows, positions=None, forward_batch=batch(2), fail=True)
    assert marked == [True, False, False, True]
    assert not routed(cap, 2 * STRIDE)
    assert not issubclass(module(DRAFT).DeepseekV4ForCausalLMDSpark, model.DeepseekV4ForCausalLM)


def test_the_real_forward_and_router_take_what_is_asked_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, router = module(TARGET), module(ROUTER)
    keep(monkeypatch, model, "DeepseekV4ForCausalLM.forward")
    keep(monkeypatch, router, "moe_fused_gate")
    cap = cap_of(Policy("2", fixed=2))
    for _ in range(2):
        verify_cap.wrap_target(model, cap)
        verify_cap.wrap_router(router, cap)
    assert not hasattr(router.moe_fused_gate.__wrapped__, "__trispark_adapters__")
    assert not hasattr(model.DeepseekV4ForCausalLM.forward.__wrapped__, "__trispark_adapters__")


def test_the_routers_packed_output_is_remapped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    router = module(ROUTER)
    keep(monkeypatch, router, "moe_fused_gate")
    ids = torch.arange(12 * 6, dtype=torch.int32).view(12, 6)

    def moe_fused_gate(scores: Any, bias: Any, topk: int, num_fused_shared_experts: int = 0, *, packed_out: Any) -> Any:
        packed_out.copy_(ids << 16)
        return torch.zeros((12, 6)), ids.clone()

    monkeypatch.setattr(router, "moe_fused_gate", moe_fused_gate)
    cap = cap_of(Policy("2", fixed=2))
    verify_cap.wrap_router(router, cap)
    cap.before_verify(2, STRIDE, "cpu")
    cap.begin_forward(batch(2), torch.zeros(12))
    packed = torch.zeros((12, 6), dtype=torch.int32)
    _, found = router.moe_fused_gate(torch.zeros((12, 384)), None, 6, packed_out=packed)
    rows = torch.tensor([0, 1, 2, 0, 0, 0, 6, 7, 8, 6, 6, 6])
    assert torch.equal(found, ids[rows])
    assert torch.equal(packed, ids[rows] << 16)


def test_the_proposals_confidence_serves_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, planner = module(f"{DSPARK}.dspark_draft"), module(f"{DSPARK}.dspark_planner")
    keep(monkeypatch, planner, "DSparkVerifyPlanner.compute_confidence_tensor")
    offered = torch.zeros((1, 5))
    proposal = SimpleNamespace(confidence=offered)
    monkeypatch.setattr(draft.DraftBlockProposer, "propose", lambda self, **given: proposal)
    cap = cap_of(conf(0.5))
    verify_cap.wrap_proposal(draft, cap)
    proposer = draft.DraftBlockProposer.__new__(draft.DraftBlockProposer)
    assert proposer.propose(bs=1) is proposal
    cap.before_verify(1, STRIDE, "cpu")
    assert cap.cut(1).tolist() == [2]

    assert "confidence" in draft.DraftProposal.__struct_fields__
    eager = hasattr(planner.DSparkVerifyPlanner, "compute_confidence_tensor")
    assert eager is ("confidence_raw" not in draft.DraftProposal.__struct_fields__)
    if eager:
        monkeypatch.setattr(
            planner.DSparkVerifyPlanner, "compute_confidence_tensor", lambda self, **given: torch.ones((1, 5))
        )
    verify_cap.wrap_planner(planner, cap)
    if eager:
        proposal.confidence = None
        proposer.propose(bs=1)
        planner.DSparkVerifyPlanner.__new__(planner.DSparkVerifyPlanner).compute_confidence_tensor(draft_tokens=None)
        cap.before_verify(1, STRIDE, "cpu")
        assert cap.cut(1).tolist() == [STRIDE]


def test_the_confidence_head_is_built_in_the_static_mode(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draft = module(DRAFT)
    keep(monkeypatch, draft, "build_dspark_v4_confidence_head", "read_ragged_verify_mode")
    config = SimpleNamespace(hidden_size=8, enable_confidence_head=True)
    assert draft.build_dspark_v4_confidence_head(config=config, markov_rank=4) is None
    read = draft.read_ragged_verify_mode
    verify_cap.wrap_head(draft)
    assert draft.build_dspark_v4_confidence_head(config=config, markov_rank=4) is not None
    assert shows(capfd.readouterr().out, "cap.head")
    with pytest.raises(ValueError, match="markov_rank"):
        draft.build_dspark_v4_confidence_head(
            config=SimpleNamespace(hidden_size=8, confidence_head_with_markov=True), markov_rank=0
        )
    assert draft.read_ragged_verify_mode is read


# -- installing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_cap, "_shared", [])
    monkeypatch.setattr(verify_cap, "_refused", set())


def test_installers_share_one_cap(
    verify: ModuleType, nothing_shared: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, router, draft = module(TARGET), module(ROUTER), module(DRAFT)
    draft_block, planner = module(f"{DSPARK}.dspark_draft"), module(f"{DSPARK}.dspark_planner")
    keep(monkeypatch, model, "DeepseekV4ForCausalLM.forward")
    keep(monkeypatch, router, "moe_fused_gate")
    keep(monkeypatch, draft, "build_dspark_v4_confidence_head")
    keep(monkeypatch, draft_block, "DraftBlockProposer.propose")
    keep(monkeypatch, planner, "DSparkVerifyPlanner.compute_confidence_tensor")
    monkeypatch.setenv("DSV41_VERIFY_CAP", "conf:0.1")
    verify_cap.install_router(router)
    verify_cap.install_target(model)
    verify_cap.install_head(draft)
    verify_cap.install_verify(verify)
    verify_cap.install_proposal(draft_block)
    verify_cap.install_planner(planner)
    assert len(verify_cap._shared) == 1
    said = capfd.readouterr().out
    assert shows(said, "cap.armed", DSV41_VERIFY_CAP="conf:0.1")
    assert "state=armed" in said
    for owner, name in ((router, "moe_fused_gate"), (draft, "build_dspark_v4_confidence_head")):
        assert getattr(owner, name).__trispark_adapters__ == ("verify_cap",)
    assert draft_block.DraftBlockProposer.propose.__trispark_adapters__ == ("verify_cap",)


def test_a_fixed_cap_builds_no_head(nothing_shared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = module(DRAFT)
    before = draft.build_dspark_v4_confidence_head
    monkeypatch.setenv("DSV41_VERIFY_CAP", "2")
    verify_cap.install_head(draft)
    assert draft.build_dspark_v4_confidence_head is before


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
def test_a_mode_that_cuts_itself_is_left_to_it(
    verify: ModuleType,
    nothing_shared: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    monkeypatch.setenv("DSV41_VERIFY_CAP", "2")
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", mode)
    before = verify.accept_draft_tokens
    for _ in range(2):
        verify_cap.install_verify(verify)
    assert verify.accept_draft_tokens is before
    said = capfd.readouterr().out
    assert said.count("[verify_cap] disabled: ") == 1
    assert "armed" not in said
    assert f"{mode}" in said


def test_off_installs_nothing(nothing_shared: None, verify: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_VERIFY_CAP", "0")
    before = verify.accept_draft_tokens
    verify_cap.install_verify(verify)
    assert verify.accept_draft_tokens is before
    assert verify_cap._shared == []

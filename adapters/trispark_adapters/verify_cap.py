"""Verify cap: the rectangle of k + 1 rows a request stays, but dead rows cost no experts and are never committed.

Of a block only as many drafts are verified as the policy of DSV41_VERIFY_CAP allows. `live` holds, for each request,
that number plus the anchor. Rows beyond it take the anchor row's experts, in the router's outputs, and the engine's own
cut keeps the acceptance below them. Rank 0's lengths hold on all ranks, by one small broadcast a step. Only the static
ragged mode is served, where the engine itself never cuts.

Hooks (facts of the field 3.6, engine 2.6): the router, the target's forward, the verify module (acceptance in the
graph and outside, the launch of the verify), the draft's proposal, the planner's confidence, and the construction of
the confidence head. The draft's own forwards, which run in the verify mode too, are left alone.
"""

import os
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from trispark_hooks.binding import replace, require_parameters, symbol
from trispark_hooks.evidence import counters, report, write
from trispark_hooks.registry import HookError

from .verify_cap_policy import Policy, parse, verify_lens

NAME: Final = "verify_cap"
STRIDE: Final = "DSV41_VERIFY_CAP_STRIDE"
MODE: Final = "SGLANG_RAGGED_VERIFY_MODE"
EXPERTS: Final = 384
TOP_K: Final = 6
MOST_REQUESTS: Final = 64
TARGET: Final = "DeepseekV4ForCausalLM"


class VerifyCap:
    """What the hooks of one process share. All state is written on the thread of the forward."""

    def __init__(self, policy: Policy, environ: Mapping[str, str], group: Any = None) -> None:
        self.policy = policy
        self.live: Any = None
        self._group = group
        self._stride = int(environ.get(STRIDE, "") or 0)
        self._verifying = 0
        self._confidence: Any = None
        self._limits: Any = None
        self._filled = 0
        self._said: set[str] = set()
        self._counts = counters(NAME, "steps", "missing", "remaps", "unfit")

    # -- rows and lengths ----------------------------------------------------------------------------------------------

    def check_stride(self, stride: int) -> None:
        """HookError TS-ADAPTER-STRIDE where the engine's rows a request are not what was set or seen before."""
        if self._stride and stride != self._stride:
            raise HookError(
                f"TS-ADAPTER-STRIDE: rows of a request differ [where: {NAME}] expected: {self._stride}; "
                f"observed: {stride} in the engine; remedy: unset {STRIDE} and use one DSPARK_BLOCK_SIZE on all ranks"
            )
        if self.policy.by_confidence:
            self.policy.limits(stride - 1)  # refuses a list of thresholds that does not fit
        self._stride = stride

    def allocate(self, device: Any) -> None:
        """Make `live`, int64 [64], before anything is captured; it stays at its address."""
        import torch

        if self.live is not None:
            return
        if _capturing():
            self._once("disabled", "the live lengths have to exist before a graph is captured")
            return
        with torch.inference_mode(False):
            self.live = torch.full((MOST_REQUESTS,), MOST_ROWS_A_REQUEST, dtype=torch.int64, device=device)

    def cut(self, bs: int) -> Any:
        """Verify lengths int64 [bs] for the engine's acceptance; None where nothing is cut."""
        return None if self.live is None or bs > MOST_REQUESTS else self.live[:bs]

    def offer(self, confidence: Any) -> None:
        """Confidences float [bs, g] of this step's proposal, or None."""
        self._confidence = confidence

    def before_verify(self, bs: int, stride: int, device: Any) -> None:
        """Write this step's live lengths, equal on all ranks; the last point on the host before the verify."""
        self.check_stride(stride)
        self.allocate(device)
        if self.live is None or bs > MOST_REQUESTS:
            return
        self._counts.add("steps")
        if not self.policy.by_confidence:
            if self._filled != stride:
                self.live.fill_(min(self.policy.fixed, stride - 1) + 1)
                self._filled = stride
            return
        confidence, self._confidence = self._confidence, None
        if confidence is None:
            self._counts.add("missing")
            self.live.fill_(stride)
        else:
            limits = self._limits_of(stride - 1, device)
            self.live[:bs].copy_(verify_lens(confidence[:bs], limits, self.policy.least))
            self.live[bs:].fill_(1)  # requests of padding: nothing of them counts
        self._tp_group().broadcast(self.live, src=0)
        if confidence is None:
            self._once("MISSING", "the draft gave none, so whole blocks are verified")
        elif "present" not in self._said:
            self._said.add("present")
            write("[verify_cap] confidence present")
            report(NAME, "active", spec=self.policy.spec)

    # -- the target's forward and its router ---------------------------------------------------------------------------

    def begin_forward(self, forward_batch: Any, input_ids: Any) -> None:
        """Remember the stride of a target verify whose rows are whole blocks; other forwards are not remapped."""
        self.allocate(input_ids.device)
        self._verifying = 0
        if self.live is None or not forward_batch.forward_mode.is_target_verify():
            return
        bs, rows = forward_batch.batch_size, input_ids.shape[0]
        stride = getattr(getattr(forward_batch, "spec_info", None), "draft_token_num", 0) or self._stride
        if not stride or rows != bs * stride or bs > MOST_REQUESTS:
            self._counts.add("unfit")
            return
        self.check_stride(stride)
        self._verifying = stride

    def end_forward(self) -> None:
        """The forward is over, or failed."""
        self._verifying = 0

    def remap(self, scores: Any, weights: Any, ids: Any, packed: Any, shared: int) -> None:
        """Overwrite the dead rows of a router's outputs; scores [M, 384], ids and weights [M, 6 + shared]."""
        from . import verify_cap_kernels

        if not self._verifying:
            return
        if scores.shape[1] != EXPERTS or ids.shape[1] != TOP_K + shared:
            self._counts.add("unfit")
            return
        rows = ids.shape[0]
        if rows % self._verifying or rows > self._verifying * MOST_REQUESTS:
            self._counts.add("unfit")
            return
        verify_cap_kernels.remap(ids, weights, packed, self.live, self._verifying)
        self._counts.add("remaps")
        if f"M={rows}" not in self._said and _capturing():
            self._said.add(f"M={rows}")
            write(f"[verify_cap] in-place remap captured into the verify graph for M={rows}")

    def _limits_of(self, gamma: int, device: Any) -> Any:
        """float32 [gamma] on `device`, made once: a tensor from the host waits for the GPU."""
        if self._limits is None:
            import torch

            with torch.inference_mode(False):
                self._limits = torch.tensor(self.policy.limits(gamma), dtype=torch.float32, device=device)
        return self._limits

    def _tp_group(self) -> Any:
        if self._group is None:
            from sglang.srt.distributed import get_tp_group

            self._group = get_tp_group()
        return self._group

    def _once(self, what: str, reason: str) -> None:
        if what in self._said:
            return
        self._said.add(what)
        write(f"[verify_cap] {'confidence MISSING' if what == 'MISSING' else what}: {reason}")
        report(NAME, "disabled", reason, spec=self.policy.spec)


MOST_ROWS_A_REQUEST: Final = 1 << 20
"""Live length of a request about which nothing was decided: all its rows."""

_shared: list[VerifyCap] = []


def current(environ: Mapping[str, str] | None = None) -> VerifyCap | None:
    """The cap of this process; None when off, or when the engine itself cuts blocks, which is said once."""
    environment = os.environ if environ is None else environ
    policy = parse(environment)
    if policy is None:
        return None
    if (mode := environment.get(MODE, "") or "static") != "static":
        _refuse_mode(policy, mode)
        return None
    if not _shared:
        _shared.append(VerifyCap(policy, environment))
    return _shared[0]


def install_router(module: ModuleType) -> None:
    """Wrap moe_fused_gate of sglang.kernels.ops.moe.moe_fused_gate."""
    if (cap := current()) is not None:
        wrap_router(module, cap)


def install_target(module: ModuleType) -> None:
    """Wrap DeepseekV4ForCausalLM.forward of sglang.srt.models.deepseek_v4."""
    if (cap := current()) is not None:
        wrap_target(module, cap)


def install_verify(module: ModuleType) -> None:
    """Wrap acceptance and launch of the verify in ...dspark_components.dspark_verify; after the folded fence."""
    if (cap := current()) is None:
        return
    wrap_verify(module, cap)
    report(NAME, "armed", spec=cap.policy.spec)
    write(f"[verify_cap] armed ({cap.policy.spec}): dead verify rows route to the anchor's experts")


def install_proposal(module: ModuleType) -> None:
    """Wrap DraftBlockProposer.propose of ...dspark_components.dspark_draft."""
    if (cap := current()) is not None and cap.policy.by_confidence:
        wrap_proposal(module, cap)


def install_planner(module: ModuleType) -> None:
    """Wrap DSparkVerifyPlanner.compute_confidence_tensor of ...dspark_planner, where the build has it (to 0.5.21)."""
    if (cap := current()) is not None and cap.policy.by_confidence:
        wrap_planner(module, cap)


def install_head(module: ModuleType) -> None:
    """Wrap build_dspark_v4_confidence_head of sglang.srt.models.deepseek_v4_dspark."""
    if (cap := current()) is not None and cap.policy.by_confidence:
        wrap_head(module)


def wrap_router(module: ModuleType, cap: VerifyCap) -> None:
    """The router's outputs of a target verify are remapped, the packed ones too."""
    require_parameters(symbol(module, "moe_fused_gate"), "scores", "num_fused_shared_experts")

    def wrap(original: Any) -> Any:
        def moe_fused_gate(*args: Any, **kwargs: Any) -> Any:
            weights, ids = original(*args, **kwargs)
            scores = args[0] if args else kwargs["scores"]
            shared = args[4] if len(args) > 4 else kwargs.get("num_fused_shared_experts", 0)
            cap.remap(scores, weights, ids, kwargs.get("packed_out"), shared)
            return weights, ids

        return moe_fused_gate

    replace(module, "moe_fused_gate", NAME, wrap)


def wrap_target(module: ModuleType, cap: VerifyCap) -> None:
    """Forwards of the target alone are marked: the class itself, no class derived from it."""
    target = symbol(module, TARGET)
    require_parameters(symbol(target, "forward"), "input_ids", "positions", "forward_batch")

    def wrap(original: Any) -> Any:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self) is not target:
                return original(self, *args, **kwargs)
            input_ids = args[0] if args else kwargs["input_ids"]
            forward_batch = args[2] if len(args) > 2 else kwargs["forward_batch"]
            cap.begin_forward(forward_batch, input_ids)
            try:
                return original(self, *args, **kwargs)
            finally:
                cap.end_forward()

        return forward

    replace(module, f"{TARGET}.forward", NAME, wrap)


def wrap_verify(module: ModuleType, cap: VerifyCap) -> None:
    """Live lengths before the launch, and the engine's own cut on every way to an acceptance."""
    require_parameters(symbol(module, "DsparkVerifyEpilogue._accept"), "candidates", "cutoff_verify_lens")
    require_parameters(symbol(module, "accept_draft_tokens"), "candidates", "cutoff_layout")
    require_parameters(symbol(module, "TargetVerifyExecutor.run_non_compact"), "verify_ids_2d")

    def wrap_accept(original: Any) -> Any:
        def accept(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("cutoff_verify_lens") is None:
                kwargs["cutoff_verify_lens"] = cap.cut(kwargs["candidates"].shape[0])
            return original(self, *args, **kwargs)

        return accept

    def wrap_eager(original: Any) -> Any:
        def accept_draft_tokens(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("cutoff_layout") is None:
                cut = cap.cut(kwargs["candidates"].shape[0])
                kwargs["cutoff_layout"] = None if cut is None else SimpleNamespace(verify_lens=cut)
            return original(*args, **kwargs)

        return accept_draft_tokens

    def wrap_launch(original: Any) -> Any:
        def run_non_compact(self: Any, *args: Any, **kwargs: Any) -> Any:
            ids = kwargs["verify_ids_2d"]
            cap.before_verify(ids.shape[0], int(self.verify_num_draft_tokens), ids.device)
            return original(self, *args, **kwargs)

        return run_non_compact

    def wrap_tail(original: Any) -> Any:
        def never(self: Any, *args: Any, **kwargs: Any) -> bool:
            return False  # the fused tail of 0.5.23 accepts without a cut

        return never

    replace(module, "DsparkVerifyEpilogue._accept", NAME, wrap_accept)
    replace(module, "accept_draft_tokens", NAME, wrap_eager)
    replace(module, "TargetVerifyExecutor.run_non_compact", NAME, wrap_launch)
    if hasattr(module.DsparkVerifyEpilogue, "_static_accept_tail"):
        replace(module, "DsparkVerifyEpilogue._serves_accept_tail", NAME, wrap_tail)


def wrap_proposal(module: ModuleType, cap: VerifyCap) -> None:
    """The proposal's confidence is kept for this step; None where the planner computes it."""
    symbol(module, "DraftBlockProposer.propose")

    def wrap(original: Any) -> Any:
        def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
            proposal = original(self, *args, **kwargs)
            cap.offer(proposal.confidence)
            return proposal

        return propose

    replace(module, "DraftBlockProposer.propose", NAME, wrap)


def wrap_planner(module: ModuleType, cap: VerifyCap) -> None:
    """The confidence that the planner computes outside of the draft graph is kept for this step."""
    planner = symbol(module, "DSparkVerifyPlanner")
    if not hasattr(planner, "compute_confidence_tensor"):
        return  # from 0.5.22 the proposal always carries it; without one the first verify says MISSING

    def wrap(original: Any) -> Any:
        def compute_confidence_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
            confidence = original(self, *args, **kwargs)
            if not _capturing():  # what the draft graph computes while it is captured is no proposal
                cap.offer(confidence)
            return confidence

        return compute_confidence_tensor

    replace(module, "DSparkVerifyPlanner.compute_confidence_tensor", NAME, wrap)


def wrap_head(module: ModuleType) -> None:
    """The static mode builds no confidence head; while it is built, the mode reads as one that does."""
    symbol(module, "read_ragged_verify_mode")
    symbol(module, "RaggedVerifyMode.CAP_ACCEPT")

    def wrap(original: Any) -> Any:
        def build_dspark_v4_confidence_head(*args: Any, **kwargs: Any) -> Any:
            read = module.read_ragged_verify_mode
            module.read_ragged_verify_mode = lambda: module.RaggedVerifyMode.CAP_ACCEPT  # type: ignore[attr-defined]
            try:
                head = original(*args, **kwargs)
            finally:
                module.read_ragged_verify_mode = read  # type: ignore[attr-defined]
            write(f"[verify_cap] draft confidence head built: {head is not None}")
            return head

        return build_dspark_v4_confidence_head

    replace(module, "build_dspark_v4_confidence_head", NAME, wrap)


def _capturing() -> bool:
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


_refused: set[str] = set()


def _refuse_mode(policy: Policy, mode: str) -> None:
    if mode not in _refused:
        _refused.add(mode)
        reason = f"the engine cuts blocks itself: {MODE}={mode}, and this adapter serves static alone"
        report(NAME, "disabled", reason, spec=policy.spec)
        write(f"[verify_cap] disabled: {reason}")

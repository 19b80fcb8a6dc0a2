"""Products of the grouped output projection with exact 8-bit twins of its weight (facts of the field 3.1, engine 2.1).

The engine widens the checkpoint's e4m3 wo_a to bf16 when it loads it, and reads that copy in every step. This adapter
stands in front of the engine's dispatch, in every module that holds its name, and answers with the twin (half of the
bytes, the same operands bit for bit, another order of float32 sums):

- 2 to 8 rows of any forward but prefill; one row too where no wide copy is left
- with DSV41_WO_A_W8_MID, 9 to 192 rows of decode, target-verify and draft-extend forwards

Everything else takes the engine's own path: prefill, however short, other shapes and types, and with two groups what
would have been quantised in the same kernel. With four groups a request to quantise is answered in bf16, as the engine
does. That a path is in a CUDA graph of the target is said once for each number of rows, when it is captured.

DSV41_WO_A_W8_DROP releases the wide copies of the target: whatever does not take the twin is then widened into a fresh
buffer for that call. DSV41_WO_A_W8_DRAFT takes the draft's three layers too, where they use the dispatch; their wide
copies are never released, for the draft can also read them by an einsum of its own.
"""

import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding
from trispark_hooks.evidence import Counters, counters, report, write
from trispark_hooks.switches import Flag

from .twin import DeviceProducts, Kernels, fits
from .twin_device import TwinError
from .wo_a_twin import Entry, Taken, Twins

NAME: Final = "wo_a_w8"
DISPATCH: Final = "_apply_wo_a_bf16_matmul"
TARGET: Final = "DeepseekV4ForCausalLM"
DRAFT: Final = "DeepseekV4ForCausalLMDSpark"
SMALL: Final = range(2, 9)
MID: Final = range(9, 193)
MIB: Final = 1 << 20
PATHS: Final = ("small", "mid", "single", "widened", "stock")
FUSED_GROUPS: Final = 2
"""Local groups for which the engine's own kernel quantises its result when it is asked to."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Modes:
    """Switches beside the master DSV41_WO_A_W8."""

    mid: bool = False
    drop: bool = False
    draft: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Modes":
        """From DSV41_WO_A_W8_MID, _DROP and _DRAFT. HookError TS-ADAPTER-SWITCH for what is not 0, 1 or empty."""
        mid, drop, draft = (Flag(f"DSV41_WO_A_W8_{name}").on(environ) for name in ("MID", "DROP", "DRAFT"))
        return cls(mid, drop, draft)


class Forwards(threading.local):
    """Modes of the forwards on this thread's stack, innermost last."""

    def __init__(self) -> None:
        self.modes: list[Any] = []

    def of_few_rows(self) -> bool:
        """Whether the innermost forward decodes, verifies or extends a draft."""
        mode = self.modes[-1] if self.modes else None
        questions = ("is_decode", "is_target_verify", "is_draft_extend", "is_draft_extend_v2")
        return any(getattr(mode, question, bool)() for question in questions)

    def of_target(self) -> bool:
        """Whether a forward of the target is on the stack; the draft's are not put there."""
        return bool(self.modes)


class Adapter:
    """What the hooked functions share. `kernels` is called once, when the first weights are there."""

    def __init__(
        self,
        modes: Modes,
        kernels: Callable[[], Kernels],
        count: Counters,
        say: Say = write,
        capturing: Callable[[], bool] | None = None,
    ) -> None:
        self.modes = modes
        self.forwards = Forwards()
        self._make = kernels
        self._count = count
        self._say = say
        self._capturing = capturing or _capturing
        self._captured: set[int] = set()
        self._twins: Twins | None = None

    def matmul(self, original: Callable[..., Any], names: tuple[str, ...], args: Any, kwargs: Any) -> Any:
        """The engine's dispatch: o [T, G, 4096], wo_a [G, 1024, 4096] -> [T, G, 1024]. `names`: its parameters."""
        given = dict(zip(names, args, strict=False)) | kwargs
        entry = self._twins.find(given["wo_a"]) if self._twins is not None else None
        if self._twins is None or entry is None:
            return original(*args, **kwargs)
        path = self._path(entry, given)
        if path is not None:
            self._count.add(path)
            self._note_captured(path, int(given["o"].shape[0]))
            return self._twins.kernels.product(entry.twin, given["o"])
        if not entry.released:
            self._count.add("stock")
            return original(*args, **kwargs)
        self._count.add("widened")
        twin = entry.twin
        wide = self._twins.kernels.widen(twin).view(twin.groups, twin.rows, twin.columns)
        if "wo_a" in kwargs:
            return original(*args, **(kwargs | {"wo_a": wide}))
        at = names.index("wo_a")
        return original(*args[:at], wide, *args[at + 1 :], **kwargs)

    def _path(self, entry: Entry, given: Mapping[str, Any]) -> str | None:
        """Name of the twin's path, None for the engine's own."""
        o = given["o"]
        if given.get("fp8_grid") or given.get("emit_fp8") or not fits(entry.twin, o):
            return None
        if given.get("fuse_mxfp8_quant") and entry.twin.groups == FUSED_GROUPS:
            return None
        few = given.get("is_decode") or given.get("is_target_verify") or self.forwards.of_few_rows()
        if given.get("is_prefill") or (self.forwards.of_target() and not few):
            return None
        rows = int(o.shape[0])
        if rows in SMALL:
            return "small"
        if rows == 1:
            return "single" if entry.released else None
        return "mid" if self.modes.mid and rows in MID and few else None

    def _note_captured(self, path: str, rows: int) -> None:
        """Counts cannot tell a warm-up from a capture, and what was not captured never runs in a step."""
        if rows in self._captured or not self.forwards.of_target() or not self._capturing():
            return
        self._captured.add(rows)
        self._say(f"[wo_a_w8] {path} path captured into a graph of the target for M={rows}")

    def load(self, model: Any, draft: bool, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """load_weights of a model, its twins built afterwards. Weights of a next-token layer alone are left alone."""
        if self._twins is not None:
            self._twins.give_back(model)
        result = original(model, *args, **kwargs)
        if kwargs.get("is_nextn") or (len(args) > 1 and args[1]):
            return result
        try:
            self._twins = self._twins or Twins(self._make())
        except TwinError as error:
            report(NAME, "refused", str(error), say=self._say)
            if not draft:
                self._said_target(Taken(left=_count_layers(model)))
            return result
        if draft:
            self._take_draft(self._twins, model)
        else:
            self._said_target(self._twins.take(model, self.modes.drop, _empty_cache))
        return result

    def _take_draft(self, twins: Twins, model: Any) -> None:
        if not self.modes.draft:
            self._say(f"[wo_a_w8] draft wo_a left on bf16 ({_count_layers(model)} weights)")
            return
        taken = twins.take(model, False, _empty_cache)
        self._say(f"[wo_a_w8] draft fp8 twins: {taken.twins} weights, {taken.left} on bf16 alone")
        report(NAME, "active", say=self._say, model="draft", **_facts(taken))

    def _said_target(self, taken: Taken) -> None:
        self._say(f"[wo_a_w8] fp8 twins for {taken.twins} wo_a weights, {taken.left} left on bf16")
        if self.modes.mid and taken.twins:
            self._say(f"[wo_a_w8] mid path armed: {MID.start}..{MID.stop - 1} rows of decode and verify forwards")
        if self.modes.drop:
            megabytes = f"{taken.released_bytes / 1e6:.1f} MB"
            self._say(
                f"[wo_a_w8] released the bf16 copy of {taken.released} wo_a weights ({megabytes}); {taken.kept} kept"
            )
        state = "active" if taken.twins else "disabled"
        reason = "" if taken.twins else "no weight has a twin"
        report(NAME, state, reason, say=self._say, model="target", **_facts(taken))


def _facts(taken: Taken) -> dict[str, Any]:
    return {
        "twins": taken.twins,
        "left": taken.left,
        "released": taken.released,
        "kept": taken.kept,
        "twin_mib": round(taken.twin_bytes / MIB, 1),
        "released_mib": round(taken.released_bytes / MIB, 1),
        "transient_mib": round(taken.transient_bytes / MIB, 1),
    }


def _count_layers(model: Any) -> int:
    from .wo_a_twin import layers_of

    return sum(1 for _ in layers_of(model))


def _capturing() -> bool:
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _empty_cache() -> None:
    """Give temporaries back: the engine sizes its KV pool by what is free."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@functools.cache
def adapter() -> Adapter:
    """The one of this process, shared by the hooked modules."""
    return Adapter(Modes.of(os.environ), DeviceProducts, counters(NAME, *PATHS))


def _wrap_dispatch(module: ModuleType, shared: Adapter) -> None:
    function = binding.symbol(module, DISPATCH)
    binding.require_parameters(function, "o", "wo_a", "is_decode")
    names = tuple(inspect.signature(inspect.unwrap(function)).parameters)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return shared.matmul(original, names, args, kwargs)

        return dispatch

    binding.replace(module, DISPATCH, NAME, wrap)


def _wrap_load(module: ModuleType, model: str, draft: bool, shared: Adapter) -> None:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
            return shared.load(self, draft, original, args, kwargs)

        return load_weights

    binding.replace(module, f"{model}.load_weights", NAME, wrap)


def install_target(module: ModuleType, shared: Adapter | None = None) -> None:
    """Hook sglang.srt.models.deepseek_v4: the dispatch, and load_weights and forward of its model."""
    shared = shared or adapter()
    binding.require_parameters(binding.symbol(module, f"{TARGET}.forward"), "forward_batch")
    _wrap_dispatch(module, shared)
    _wrap_load(module, TARGET, False, shared)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        at = list(inspect.signature(inspect.unwrap(original)).parameters).index("forward_batch")

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[at]
            shared.forwards.modes.append(batch.forward_mode)
            try:
                return original(*args, **kwargs)
            finally:
                shared.forwards.modes.pop()

        return forward

    binding.replace(module, f"{TARGET}.forward", NAME, wrap)
    modes = shared.modes
    report(NAME, "armed", model="target", mid=int(modes.mid), drop=int(modes.drop), draft=int(modes.draft))


def install_draft(module: ModuleType, shared: Adapter | None = None) -> None:
    """Hook sglang.srt.models.deepseek_v4_dspark: its name of the dispatch where it has one, and load_weights."""
    shared = shared or adapter()
    dispatched = hasattr(module, DISPATCH)
    if dispatched:
        _wrap_dispatch(module, shared)
    elif shared.modes.draft:
        report(NAME, "disabled", "this build's draft evaluates its own einsum, not the dispatch", model="draft")
        return
    _wrap_load(module, DRAFT, True, shared)

"""The terms of a memory budget: what each part of a boot takes on a rank, from its settings and the data of a model.

Pure arithmetic, MiB (1 MiB = 1048576 B); docs/memory.md has the formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trispark.allowlist import Value
from trispark.errors import TrisparkError
from trispark.memory_model import SETTINGS, MemoryModel, MemoryState, Quantity

MIB: Final = 1048576
MIB_PER_GIB: Final = 1024
MAX_NUMBER: Final = 10**12
"""No setting is larger; beyond it the arithmetic of floats would say nothing."""

_MAY_BE_NEGATIVE: Final = {"NCCL_LL128_BUFFSIZE"}
_WHOLE: Final = {
    "CHUNKED_PREFILL_SIZE",
    "CONTEXT_LENGTH",
    "DSPARK_BLOCK_SIZE",
    "EP_SIZE",
    "MAX_RUNNING_REQUESTS",
    "MAX_TOTAL_TOKENS",
    "NCCL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_MAX_NCHANNELS",
    "TP_SIZE",
}
_TEXT: Final = {"OFFLOAD_MODE"}
_FLAGS: Final = set(SETTINGS) - _WHOLE - _TEXT - {"DSV41_CACHE_GIB", "MEM_FRACTION_STATIC"}


class Phase(StrEnum):
    """When a term is taken, in the order of a boot."""

    HOST = "host"
    WEIGHTS = "weights"
    POOL = "pool"
    SERVING = "serving"
    PEAK = "peak"


@dataclass(frozen=True)
class Term:
    """One part of the budget; negative when it gives memory back. A peak is not held, and not in any total."""

    id: str
    title: str
    mib: float
    phase: Phase
    source: str
    head_only: bool = False


@dataclass(frozen=True)
class BudgetSettings:
    """The settings that the budget looks at, checked; `pin` is None when the pool is not pinned."""

    tp_size: int
    ep_size: int
    fraction: float
    context: int
    slots: int
    chunk: int
    pin: int | None
    block: int
    tables_in_memory: bool
    cache_gib: float
    resident_scales: bool
    twins: bool
    draft_twins: bool
    drop: bool
    draft_head: bool
    nccl_buffer: int
    nccl_ll128: int
    nccl_channels: int


def read_settings(model: MemoryModel, settings: Mapping[str, Value]) -> BudgetSettings:
    """What the budget needs; what is not given is the model's reference. Raises TS-BUDGET-SETTING."""
    values = {name: _checked(name, settings.get(name, model.reference[name])) for name in SETTINGS}
    number = {name: value for name, value in values.items() if not isinstance(value, str)}
    twins = bool(number["DSV41_WO_A_W8"])
    return BudgetSettings(
        tp_size=int(number["TP_SIZE"]),
        ep_size=int(number["EP_SIZE"]),
        fraction=float(number["MEM_FRACTION_STATIC"]),
        context=int(number["CONTEXT_LENGTH"]),
        slots=int(number["MAX_RUNNING_REQUESTS"]),
        chunk=int(number["CHUNKED_PREFILL_SIZE"]),
        pin=int(number["MAX_TOTAL_TOKENS"]) or None,
        block=int(number["DSPARK_BLOCK_SIZE"]),
        tables_in_memory=values["OFFLOAD_MODE"] == "ram" or bool(number["SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"]),
        cache_gib=float(number["DSV41_CACHE_GIB"]),
        resident_scales=bool(number["DSV41_RESIDENT_SCALES"]),
        twins=twins,
        draft_twins=twins and bool(number["DSV41_WO_A_W8_DRAFT"]),
        drop=twins and bool(number["DSV41_WO_A_W8_DROP"]),
        draft_head=bool(number["DSV41_DRAFT_HEAD_FP8"]),
        nccl_buffer=int(number["NCCL_BUFFSIZE"]),
        nccl_ll128=int(number["NCCL_LL128_BUFFSIZE"]),
        nccl_channels=int(number["NCCL_MAX_NCHANNELS"]),
    )


def _checked(name: str, value: object) -> int | float | str:
    if name in _TEXT:
        if isinstance(value, str):
            return value
        raise _wrong(name, value, "a text")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value, "a number")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise _wrong(name, value, f"a number of at most {MAX_NUMBER}")
    if name in _FLAGS and value not in (0, 1):
        raise _wrong(name, value, "0 or 1")
    if name in _WHOLE and value != math.floor(value):
        raise _wrong(name, value, "a whole number")
    if value < 0 and name not in _MAY_BE_NEGATIVE:
        raise _wrong(name, value, "a number that is not negative")
    return value


def _wrong(name: str, value: object, expected: str) -> TrisparkError:
    return TrisparkError(
        "TS-BUDGET-SETTING",
        f"the memory budget cannot be computed from {name}",
        where=name,
        expected=expected,
        observed=repr(value)[:80],
        remedy=f"correct {name}",
    )


def nccl_mib(model: MemoryModel, channels: int, buffer: int, ll128: int) -> float:
    """Pinned buffers of one node; a negative `ll128` means NCCL's default."""
    ll128_bytes = model.nccl.ll128_default_bytes.value if ll128 < 0 else ll128
    each = buffer + model.nccl.ll_bytes.value + ll128_bytes
    return channels * model.nccl.buffers_per_channel.value * each / MIB


def swa_tokens(model: MemoryModel, settings: BudgetSettings) -> int:
    """Tokens of the sliding window pool: what requests hold in flight, and the cached tails of prefixes."""
    kv = model.kv
    rows = settings.block + 1
    page, window = kv.page_tokens.value, kv.window_tokens.value
    request = window + page + rows * kv.eviction_interval.value + 2 * rows
    tails = kv.prefix_tails_per_slot.value * settings.slots * (window + page)
    return int(math.ceil((settings.slots * request + 2 * settings.chunk + page + tails) / page) * page)


def graphs_mib(model: MemoryModel, settings: BudgetSettings) -> float:
    """Graphs of the batches 1 to all slots, each with block + 1 rows a request."""
    rows = (settings.block + 1) * settings.slots * (settings.slots + 1) / 2
    return settings.slots * model.graphs.batch_mib.value + rows * model.graphs.row_mib.value


def reserved_mib(model: MemoryModel, settings: BudgetSettings) -> float:
    """What is gone before weights are loaded: the reserve of the host, changed by what NCCL pins."""
    return model.host.reserve_mib.value + _nccl_change(model, settings)


def available_mib(model: MemoryModel, settings: BudgetSettings) -> float:
    """What the engine measures before it loads weights; at least 1 MiB, so that fractions of it exist."""
    return max(1.0, model.host.total_mib.value - reserved_mib(model, settings))


def _nccl_change(model: MemoryModel, settings: BudgetSettings) -> float:
    reference = read_settings(model, {})
    now = nccl_mib(model, settings.nccl_channels, settings.nccl_buffer, settings.nccl_ll128)
    return now - nccl_mib(model, reference.nccl_channels, reference.nccl_buffer, reference.nccl_ll128)


def terms(model: MemoryModel, settings: BudgetSettings, state: MemoryState) -> tuple[Term, ...]:
    """All terms but the pool of tokens, those that are zero left out, in the order of a boot."""
    every = [
        *_host_terms(model, settings),
        *_weight_terms(model, settings, state),
        *_pool_terms(model, settings),
        *_serving_terms(model, settings),
        *_peak_terms(model, settings),
    ]
    return tuple(term for term in every if term.mib != 0)


def _term(id: str, title: str, mib: float, phase: Phase, origin: Quantity, head_only: bool = False) -> Term:
    return Term(id, title, mib, phase, origin.source, head_only)


def _host_terms(model: MemoryModel, settings: BudgetSettings) -> list[Term]:
    host, nccl = model.host.reserve_mib, model.nccl.buffers_per_channel
    change = _nccl_change(model, settings)
    return [
        _term("host", "operating system, driver, context", host.value, Phase.HOST, host),
        _term("nccl_change", "NCCL buffers, change against the reference", change, Phase.HOST, nccl),
    ]


def _weight_terms(model: MemoryModel, settings: BudgetSettings, state: MemoryState) -> list[Term]:
    target, draft, wo_a, engram = model.weights.target_mib, model.weights.draft_mib, model.wo_a, model.engram
    minimum = state.baseline_minimum
    rest = minimum.value * (model.host.total_mib.value - model.host.reserve_mib.value) - target.value - draft.value
    layers, draft_layers, twin = wo_a.target_layers.value, wo_a.draft_layers.value, wo_a.twin_layer_mib.value
    # Beside the wide copies the draft's twins are counted too, as in the boot that failed; see the data.
    draft_twins = settings.twins and (settings.draft_twins or not settings.drop)
    head = model.draft_head.twin_mib
    cache = settings.cache_gib * engram.cache_mib_per_gib.value
    scales = engram.rows.value * engram.scale_bytes.value / MIB
    tables = engram.rows.value * engram.row_bytes.value / MIB
    phase = Phase.WEIGHTS
    return [
        _term("target_weights", "weights of the target", target.value, phase, target),
        _term("draft_weights", "weights of the draft", draft.value, phase, draft),
        _term("unattributed", f"not attributed (memory state {state.id})", rest, phase, minimum),
        _term(
            "wo_a_twins",
            f"8-bit twins of wo_a, {layers:.0f} layers of the target",
            twin * layers * settings.twins,
            phase,
            wo_a.twin_layer_mib,
        ),
        _term(
            "wo_a_twins_draft",
            f"8-bit twins of wo_a, {draft_layers:.0f} layers of the draft",
            twin * draft_layers * draft_twins,
            phase,
            wo_a.draft_layers,
        ),
        _term(
            "wo_a_released",
            f"wide copies of wo_a released, {layers:.0f} layers",
            -wo_a.wide_layer_mib.value * layers * settings.drop,
            phase,
            wo_a.wide_layer_mib,
        ),
        _term("draft_head", "FP8 head of the draft", head.value * settings.draft_head, phase, head),
        _term("row_cache", "Engram row cache, both layers", cache, phase, engram.cache_mib_per_gib),
        _term(
            "resident_scales",
            "resident Engram scales",
            scales * settings.resident_scales,
            phase,
            engram.scale_bytes,
        ),
        _term("tables", "Engram tables in memory", tables * settings.tables_in_memory, phase, engram.row_bytes),
    ]


def _pool_terms(model: MemoryModel, settings: BudgetSettings) -> list[Term]:
    kv, tokens = model.kv, swa_tokens(model, settings)
    window = tokens * kv.swa_token_bytes.value / MIB
    kept = kv.engine_reserve_mib
    return [
        _term("sliding_window", f"sliding window, {tokens} tokens", window, Phase.POOL, kv.swa_token_bytes),
        _term("engine_reserve", "kept back by the engine before sizing", kept.value, Phase.POOL, kept),
    ]


def _serving_terms(model: MemoryModel, settings: BudgetSettings) -> list[Term]:
    buffers, head = model.serving.work_buffers_mib, model.serving.head_processes_mib
    batches = f"CUDA graphs, batches of 1 to {settings.slots}, {settings.block + 1} rows each request"
    graphs = graphs_mib(model, settings)
    return [
        _term("work_buffers", "work buffers of kernels and tuning", buffers.value, Phase.SERVING, buffers),
        _term("graphs", batches, graphs, Phase.SERVING, model.graphs.batch_mib),
        _term("head_processes", "API and tokenizer, head only", head.value, Phase.SERVING, head, head_only=True),
    ]


def _peak_terms(model: MemoryModel, settings: BudgetSettings) -> list[Term]:
    twins, head, prefill = (
        model.transients.wo_a_build_mib,
        model.transients.draft_head_build_mib,
        model.transients.prefill_bytes,
    )
    prompt = prefill.value * settings.chunk * settings.context / MIB
    title = f"peak at the end of a prompt of {settings.context} tokens"
    return [
        _term("wo_a_build", "peak while twins of wo_a are built", twins.value * settings.twins, Phase.PEAK, twins),
        _term("draft_head_build", "peak while that head is made", head.value * settings.draft_head, Phase.PEAK, head),
        _term("prefill", title, prompt, Phase.PEAK, prefill),
    ]

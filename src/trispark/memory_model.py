"""experiments/memory.yml: what a boot costs in memory, as data with its source. docs/memory.md explains the model.

Amounts are MiB (1 MiB = 1048576 B) a rank; fractions are parts of the memory available before the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from trispark.catalog_model import DIRECTORY, Id, Raw
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml

FILE: Final = f"{DIRECTORY}/memory.yml"
SETTINGS: Final = (
    "CHUNKED_PREFILL_SIZE",
    "CONTEXT_LENGTH",
    "DSPARK_BLOCK_SIZE",
    "DSV41_CACHE_GIB",
    "DSV41_DRAFT_HEAD_FP8",
    "DSV41_RESIDENT_SCALES",
    "DSV41_WO_A_W8",
    "DSV41_WO_A_W8_DRAFT",
    "DSV41_WO_A_W8_DROP",
    "DSV41_WO_A_W8_MID",
    "EP_SIZE",
    "MAX_RUNNING_REQUESTS",
    "MAX_TOTAL_TOKENS",
    "MEM_FRACTION_STATIC",
    "NCCL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_MAX_NCHANNELS",
    "OFFLOAD_MODE",
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
    "TP_SIZE",
)
"""The settings that the budget looks at; every other one costs nothing that is known."""

Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$")]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Quantity(Strict):
    """A number, where it comes from, and what it does not say; its unit is the end of the field's name."""

    value: float = Field(ge=0)
    source: str
    note: str | None = None


class Shape(Strict):
    """The layouts for which the numbers hold."""

    tp_size: int = Field(ge=1)
    ep_sizes: tuple[int, ...] = Field(min_length=1)
    ep_note: str
    source: str


class Host(Strict):
    """Memory of a node: all of it, what the engine never gets, and what a guard wants free while serving."""

    total_mib: Quantity
    reserve_mib: Quantity
    guard_mib: Quantity

    @model_validator(mode="after")
    def _room(self) -> Host:
        if self.reserve_mib.value >= self.total_mib.value:
            raise ValueError("reserve_mib leaves nothing of total_mib")
        return self


class FractionLimits(Strict):
    """Bounds of MEM_FRACTION_STATIC that hold whatever the arithmetic says."""

    refused_from: Quantity
    refused_below: Quantity
    highest_served: Quantity


class Weights(Strict):
    """Tensors of the checkpoint, as the engine measured them."""

    target_mib: Quantity
    draft_mib: Quantity


class MemoryState(Strict):
    """How full a node is apart from what the settings explain: the least fraction that the reference needs then."""

    id: Id
    title: str
    baseline_minimum: Quantity


class WoA(Strict):
    """The grouped output projection, wide and as 8-bit twins."""

    wide_layer_mib: Quantity
    twin_layer_mib: Quantity
    target_layers: Quantity
    draft_layers: Quantity


class DraftHead(Strict):
    """The FP8 copy of the LM head that the draft uses."""

    twin_mib: Quantity


class Engram(Strict):
    """Rows of both layers that one rank owns, and the row cache of a host, which both layers share."""

    rows: Quantity
    row_bytes: Quantity
    scale_bytes: Quantity
    cache_mib_per_gib: Quantity


class Nccl(Strict):
    """Pinned buffers: one for each protocol, connection and channel; all protocols count, also one that is not used."""

    buffers_per_channel: Quantity
    ll_bytes: Quantity
    ll128_default_bytes: Quantity


class Kv(Strict):
    """The token pool and the sliding window beside it."""

    token_bytes: Quantity
    page_tokens: Quantity
    window_tokens: Quantity
    eviction_interval: Quantity
    prefix_tails_per_slot: Quantity
    swa_token_bytes: Quantity
    engine_reserve_mib: Quantity

    @model_validator(mode="after")
    def _divisible(self) -> Kv:
        if self.token_bytes.value == 0 or self.page_tokens.value < 1:
            raise ValueError("token_bytes and page_tokens must be above 0")
        return self


class Graphs(Strict):
    """CUDA graphs: a part for each captured batch size and one for each row of it."""

    batch_mib: Quantity
    row_mib: Quantity


class Serving(Strict):
    """What is taken after the pools."""

    work_buffers_mib: Quantity
    head_processes_mib: Quantity


class Transients(Strict):
    """Peaks that come and go: while twins are built, and while a long prompt is read."""

    wo_a_build_mib: Quantity
    draft_head_build_mib: Quantity
    prefill_bytes: Quantity


class Relief(Strict):
    """A bundle of the catalog that makes room, with what it sets."""

    bundle: Id
    sets: dict[str, Raw] = Field(min_length=1)
    why: str
    source: str


class Observed(Strict):
    """What a boot showed; exactly one. Pools are those before the pin."""

    minimum_fraction: Fraction | None = None
    pool_tokens: int | None = Field(default=None, ge=0)
    pool_at_least: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one(self) -> Observed:
        if sum(value is not None for value in (self.minimum_fraction, self.pool_tokens, self.pool_at_least)) != 1:
            raise ValueError("exactly one of minimum_fraction, pool_tokens, pool_at_least is needed")
        return self


class _Known(Strict):
    id: Identity
    what: str
    reproduced: bool
    note: str | None = None
    source: str

    @model_validator(mode="after")
    def _explained(self) -> _Known:
        if self.reproduced == (self.note is not None):
            raise ValueError("a note belongs to what is not reproduced, and only there")
        return self


class KnownBoot(_Known):
    """A boot whose minimum fraction or pool is known."""

    state: Id
    settings: dict[str, Raw]
    observed: Observed


class KnownStep(_Known):
    """By how much the minimum fraction rose from one configuration to another."""

    before: dict[str, Raw]
    after: dict[str, Raw]
    observed: Annotated[float, Field(ge=-1, le=1)]


class KnownAmount(_Known):
    """The size of some terms together, or what a rank had left while serving."""

    terms: tuple[str, ...] = ()
    free_rank: int | None = Field(default=None, ge=0)
    settings: dict[str, Raw]
    observed_mib: float

    @model_validator(mode="after")
    def _one(self) -> KnownAmount:
        if bool(self.terms) == (self.free_rank is not None):
            raise ValueError("exactly one of terms and free_rank is needed")
        return self


class Calibration(Strict):
    """What the model was compared with; a row counts as reproduced within `tolerance` (a fraction)."""

    tolerance: Fraction
    boots: tuple[KnownBoot, ...]
    steps: tuple[KnownStep, ...]
    amounts: tuple[KnownAmount, ...]


class MemoryModel(Strict):
    """The memory of one kind of node; see experiments/memory.yml."""

    name: Id
    title: str
    shape: Shape
    reference: dict[str, Raw]
    host: Host
    fraction: FractionLimits
    weights: Weights
    states: tuple[MemoryState, ...] = Field(min_length=1)
    usual_state: Id
    wo_a: WoA
    draft_head: DraftHead
    engram: Engram
    nccl: Nccl
    kv: Kv
    graphs: Graphs
    serving: Serving
    transients: Transients
    reliefs: tuple[Relief, ...]
    calibration: Calibration

    @model_validator(mode="after")
    def _consistent(self) -> MemoryModel:
        states = [state.id for state in self.states]
        minima = [state.baseline_minimum.value for state in self.states]
        missing = sorted(set(SETTINGS) - set(self.reference))
        known = [*self.calibration.boots, *self.calibration.steps, *self.calibration.amounts]
        given = [self.reference, *(relief.sets for relief in self.reliefs)]
        given += [boot.settings for boot in self.calibration.boots]
        given += [amount.settings for amount in self.calibration.amounts]
        given += [settings for step in self.calibration.steps for settings in (step.before, step.after)]
        surplus = sorted({name for settings in given for name in settings} - set(SETTINGS))
        unknown = sorted({boot.state for boot in self.calibration.boots} - set(states))
        problems = [
            (len(set(states)) != len(states), "a state is there twice"),
            (minima != sorted(minima), "states are not in the order of baseline_minimum"),
            (self.usual_state not in states, f"usual_state {self.usual_state} is no state"),
            (bool(missing), f"reference lacks {missing[:1]}"),
            (bool(surplus), f"{surplus[:1]} is no setting of the budget"),
            (bool(unknown), f"a boot names the state {unknown[:1]}"),
            (len({entry.id for entry in known}) != len(known), "a calibration id is there twice"),
        ]
        for wrong, text in problems:
            if wrong:
                raise ValueError(text)
        return self

    @property
    def cautious(self) -> MemoryState:
        """The fullest known state; what does not fit there may not boot."""
        return self.states[-1]

    def state(self, identity: str) -> MemoryState:
        """The state of that id."""
        return next(state for state in self.states if state.id == identity)


class MemoryFile(Strict):
    """experiments/memory.yml."""

    schema_version: Literal[1]
    models: tuple[MemoryModel, ...]

    @model_validator(mode="after")
    def _unique(self) -> MemoryFile:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is there twice")
        return self


def load_memory_models(root: Path) -> dict[str, MemoryModel]:
    """{name: model} of experiments/memory.yml below `root`. Raises TS-CATALOG-SCHEMA, TS-YAML-*."""
    file = check_model(MemoryFile, read_yaml(root / FILE), FILE, "TS-CATALOG-SCHEMA")
    return {model.name: model for model in file.models}


def require_memory_model(models: Mapping[str, MemoryModel], name: str, where: str) -> MemoryModel:
    """The model of that name. Raises TS-BUDGET-MODEL."""
    if name not in models:
        raise TrisparkError(
            "TS-BUDGET-MODEL",
            "the memory model is unknown",
            where=where,
            expected="one of " + ", ".join(models),
            observed=name,
            remedy=f"name a model of {FILE}, or describe the node there",
        )
    return models[name]

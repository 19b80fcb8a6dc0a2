"""The shape of a record; schemas/record.schema.json is made from it. Another shape is a new schema_version."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

SCHEMA_VERSION: Final = 1
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Generation = Annotated[str, Field(pattern=r"^g[0-9a-f]{16}$")]
RecordId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Scalar = int | float | str | bool | None


class Part(BaseModel):
    """Base of every part of a record."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Previous(Part):
    """The record before this one in the site's chain."""

    seq: Annotated[int, Field(ge=1)]
    hash: Hash


class Project(Part):
    """The tree that made the record."""

    version: str
    commit: str | None
    dirty: bool


class Requested(Part):
    """What was asked for, before anything was resolved. `value`: of a sweep; `slot`: the boot's place in its trial;
    `broke_lock`: whose fleet lock a rollback took away."""

    stage: str | None = None
    feature: str | None = None
    value: str | None = None
    slot: Annotated[int, Field(ge=0)] | None = None
    arm: Literal["baseline", "candidate"] | None = None
    trial: str | None = None
    overrides: dict[str, str] = Field(default_factory=dict)
    purpose: str
    broke_lock: str | None = None


class Mount(Part):
    """A mount of the engine's container."""

    source: str
    target: str
    read_only: bool


class ResolvedRank(Part):
    """What one rank was to run. `env_withheld`: names of variables whose value may not be recorded."""

    rank: Annotated[int, Field(ge=0)]
    node: str
    env: dict[str, str]
    env_withheld: list[str]
    command: list[str]
    mounts: list[Mount]


class Resolved(Part):
    """The resolved configuration, as far as it may be recorded. `changed_keys`: settings unlike the baseline's."""

    generation: Generation
    engine: str
    image: str
    settings: dict[str, Scalar]
    settings_withheld: list[str]
    adapters: dict[str, Hash]
    changed_keys: list[str]
    ranks: list[ResolvedRank]


class EngramLayer(Part):
    """One layer as the log of a rank shows it; None where no line was seen."""

    layer: int
    packed: bool | None
    first_row: int | None
    end_row: int | None
    lookups: int
    reads: int


class Versions(Part):
    """Versions read on the node and inside the container; None where unknown."""

    engine: str | None = None
    packages: dict[str, str | None] = Field(default_factory=dict)
    kernel: str | None = None
    kernel_packages: dict[str, str] = Field(default_factory=dict)


class Memory(Part):
    """Of a node and of the engine's processes on it, in bytes; GPU memory of a GB10 is memory of its node."""

    resident_bytes: Annotated[int, Field(ge=0)]
    memory_available_bytes: Annotated[int, Field(ge=0)]
    memory_total_bytes: Annotated[int, Field(ge=0)]


class HashTree(Part):
    """Files under one hash (trispark_node.file_tree); `problem`: why there is none."""

    hash: Hash | None
    files: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)]
    problem: str = ""


class RankIdentity(Part):
    """The bits that one rank runs, hashed from outside its container. `autotune`: sha256 of each file of tactics.
    `seconds`: what hashing took. `differing`: by tree, the files in which ranks differ, None where this one lacks it.
    """

    source: HashTree | None
    adapters: HashTree | None
    libraries: HashTree | None
    autotune: dict[str, str]
    seconds: Annotated[float, Field(ge=0)]
    differing: dict[str, dict[str, str | None]]


class ObservedRank(Part):
    """What one rank really ran, read by the node agent. A rank that was not observed has nothing but its name.

    `identity`: None in records of older versions.
    """

    rank: Annotated[int, Field(ge=0)]
    node: str
    seen: bool
    container_id: str | None = None
    image_id: str | None = None
    image_ref: str | None = None
    image_digests: list[str] = Field(default_factory=list)
    started_at: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    env_withheld: list[str] = Field(default_factory=list)
    command: list[str] = Field(default_factory=list)
    mounts: list[Mount] = Field(default_factory=list)
    adapters: dict[str, str] = Field(default_factory=dict)
    versions: Versions = Field(default_factory=Versions)
    memory: Memory | None = None
    engram: list[EngramLayer] = Field(default_factory=list)
    identity: RankIdentity | None = None


class EngineShape(Part):
    """The shape of the engine as it reports it; None where it did not say."""

    tp_size: int | None = None
    ep_size: int | None = None
    block_size: int | None = None
    verify_tokens: int | None = None
    graph_batch_sizes: list[int] | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    context_length: int | None = None
    mem_fraction_static: float | None = None
    cache_gib: float | None = None


class Observed(Part):
    """Everything observed, apart from measurements."""

    engine: EngineShape
    ranks: list[ObservedRank]


class Timings(Part):
    """UTC times (ISO 8601) and the seconds of each phase, in order."""

    started_at: str
    ended_at: str
    phases: dict[str, float]


class Gate(Part):
    """One judged gate."""

    check_id: str
    rank: int | None
    ok: bool
    expected: str
    observed: str
    remedy: str


class BenchInput(Part):
    """What was measured, from which rank and with which image; prompts as sha256, by workload.

    `protocol` 1 is the first client's: its records have nothing of what stands behind it here. Measurements of
    different protocols are not compared. `draws`: temperature and top_p by workload. `contexts`: sha256 of the text
    before each prompt. `mixed`: width, max_tokens and the long prompt's sha256.
    """

    repetitions: int
    max_tokens: int
    warmup_tokens: int
    concurrency: list[int]
    rank: int
    image: str
    workloads: dict[str, list[Hash]]
    protocol: Literal[1, 2] = 1
    seed: int | None = None
    draws: dict[str, dict[str, float]] = Field(default_factory=dict)
    contexts: dict[str, Hash] = Field(default_factory=dict)
    mixed: list[dict[str, Any]] = Field(default_factory=list)
    thinking: bool = False
    reasoning_effort: str | None = None


class Bench(Part):
    """Raw results of the load client and what benchstats makes of them.

    `requests`: trispark_bench.sample.Sample, with the time and size of every event. `order`: tags as they were
    measured. `windows`: who answered and what was counted at both ends of each; `checks`: bench_windows.WindowCheck,
    `steps`: step_time.StepCheck. `ended`: why a measurement ended early.
    """

    input: BenchInput
    requests: list[dict[str, Any]]
    waves: list[dict[str, Any]]
    server_info: list[dict[str, Any]] | dict[str, Any] | None
    summary: dict[str, Any]
    order: list[str] = Field(default_factory=list)
    windows: list[dict[str, Any]] = Field(default_factory=list)
    checks: list[dict[str, Any]] = Field(default_factory=list)
    steps: list[dict[str, Any]] = Field(default_factory=list)
    ended: str | None = None


class BootOutcome(Part):
    """valid: all gates passed; invalid: it ran, but a gate failed; failed: it did not become ready."""

    state: Literal["valid", "invalid", "failed"]
    reason: str
    good: bool


class ImageProvenance(Part):
    """What was judged of an image before the boot, on every node below `provenance/`. `image`: reference by digest;
    hashes of the files; `signer` as the site's allowed_signers file names it, `key` as ssh-keygen shows it."""

    image: str
    statement_sha256: Hash
    sbom_sha256: Hash
    signature_sha256: Hash | None
    signer: str | None
    key: str | None


class BootRecord(Part):
    """One boot."""

    schema_version: Literal[1]
    kind: Literal["boot"]
    seq: Annotated[int, Field(ge=1)]
    id: RecordId
    site: str
    previous: Previous | None
    project: Project
    boot_id: str
    epoch: Annotated[int, Field(ge=0)]
    requested: Requested
    resolved: Resolved
    observed: Observed
    timings: Timings
    gates: list[Gate]
    bench: Bench | None
    outcome: BootOutcome
    provenance: list[ImageProvenance] = Field(default_factory=list)


class TrialBoot(Part):
    """A boot of a trial, by its record."""

    arm: Literal["baseline", "candidate"]
    boot_id: str
    generation: Generation
    seq: Annotated[int, Field(ge=1)]
    hash: Hash
    valid: bool


class Confirmed(Part):
    """A promotion that a confirmation is of: its trial's record, and the changed keys that stand as it set them."""

    record: RecordId
    record_hash: Hash
    feature: str
    value: str | None
    keys: list[str]


class TrialResolved(Part):
    """The two arms, the declared difference, and the id of the plan; records of older versions have no plan.
    `confirms`: of a confirmation, whose baseline is the shipped one, the promotions that make the difference."""

    baseline: Generation
    candidate: Generation
    changed: dict[str, dict[str, Scalar]]
    plan: str | None = None
    confirms: list[Confirmed] = Field(default_factory=list)


class Ratio(Part):
    """A metric in both arms."""

    baseline: float
    candidate: float
    ratio: float | None


class RatioRange(Part):
    """Candidate over baseline with an interval; without one where so few boots have none."""

    ratio: float
    low: float | None
    high: float | None
    covers: float | None


class JudgedMetric(Part):
    """A metric at the look that decided, with the values of the boots (verdict_detail.MetricDetail)."""

    metric: str
    role: Literal["primary", "guard"]
    better: Literal["higher", "lower"]
    state: Literal["better", "harm", "harm suspected", "not worse", "no variance", "open"]
    baseline: list[float]
    candidate: list[float]
    welch: RatioRange
    paired: RatioRange
    hodges_lehmann: RatioRange
    p: float | None
    margin: float
    least: float | None
    outliers: list[float]


class JudgedMechanism(Part):
    """Whether a metric moved as the feature declares; None: it was not measured in every boot."""

    metric: str
    goes: Literal["higher", "lower"]
    moved: bool | None
    baseline: float | None
    candidate: float | None
    p: float | None


class TrialDetail(Part):
    """The look that decided: boots an arm, its one-sided level, whether it ended the trial, every watched metric, the
    mechanism."""

    boots: Annotated[int, Field(ge=2)]
    ends: bool
    level: float
    metrics: list[JudgedMetric]
    mechanism: list[JudgedMechanism]


class TrialOutcome(Part):
    """The verdict, and which generation serves afterwards.

    `code` names the reason and `rules` are those of the plan; both are empty in records of older versions. `unchecked`:
    rules of validity that nothing probed.
    """

    verdict: Literal["KEEP", "REJECT", "INCONCLUSIVE"]
    reason: str
    differences: dict[str, Ratio]
    restored: Generation | None
    code: str = ""
    unchecked: list[str] = Field(default_factory=list)
    detail: TrialDetail | None = None
    rules: dict[str, Any] | None = None


class TrialRecord(Part):
    """One trial; its boots are records of their own."""

    schema_version: Literal[1]
    kind: Literal["trial"]
    seq: Annotated[int, Field(ge=1)]
    id: RecordId
    site: str
    previous: Previous | None
    project: Project
    requested: Requested
    resolved: TrialResolved
    boots: list[TrialBoot]
    timings: Timings
    outcome: TrialOutcome


class Record(RootModel[Annotated[BootRecord | TrialRecord, Field(discriminator="kind")]]):
    """A record of either kind."""

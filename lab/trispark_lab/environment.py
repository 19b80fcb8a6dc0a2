"""Environment names of the engine: implemented, inert (one production value) or refused. Data first, then the check.

An inert name has no effect in the lab; only a value that production uses is accepted, so that nobody believes a
switch was tested here. A name with a controlled prefix that is not listed is a start error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import EngineError

CONTROLLED_PREFIXES = ("DSV41_", "DSPARK_", "SGLANG_", "NCCL_")


@dataclass(frozen=True)
class Rule:
    """kind: implemented | inert | refused; pattern: full match for an accepted value; note: what it is or why not."""

    kind: str
    pattern: str
    note: str


def _implemented(pattern: str, note: str) -> Rule:
    return Rule("implemented", pattern, note)


def _inert(*values: str) -> Rule:
    return Rule("inert", "|".join(re.escape(value) for value in values), " or ".join(repr(value) for value in values))


def _inert_pattern(pattern: str, note: str) -> Rule:
    return Rule("inert", pattern, note)


def _refused(why: str) -> Rule:
    return Rule("refused", r"(?!)", why)


_OFF = _inert("0")

RULES: dict[str, Rule] = {
    # Engram and storage
    "DSV41_SOURCE": _implemented(r".+", "a path: checkpoint for unpacked rows, and the switch of the adapters"),
    "DSV41_PACKED_DIR": _implemented(r".+", "a path: folder of the packed shards"),
    "DSV41_CACHE_GIB": _implemented(r"([0-9]|[1-5][0-9]|6[0-3])(\.[0-9]{1,9})?|64(\.0{1,9})?", "0..64, in GiB"),
    "DSV41_CACHE_WAYS": _implemented(r"[1-9]|1[0-6]", "1..16"),
    "DSV41_IO_THREADS": _implemented(r"[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-6]", "1..256"),
    "DSV41_STATS_SECONDS": _implemented(r"-?[0-9]{1,6}(\.[0-9]{1,6})?", "seconds; 0 or less is off"),
    "DSV41_RESIDENT_SCALES": _OFF,
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": _OFF,
    # Speculation; the adapter serves wo_a, without it the name has no effect, as in the field
    "DSPARK_BLOCK_SIZE": _implemented(r"[1-7]", "1..7, equal to --speculative-dspark-block-size"),
    "DSV41_WO_A_W8": _implemented(r"[01]", "0 or 1; read by the wo_a adapter"),
    "DSV41_WO_A_W8_MID": _implemented(r"[01]", "0 or 1; read by the wo_a adapter"),
    "DSV41_WO_A_W8_DROP": _implemented(r"[01]", "0 or 1; read by the wo_a adapter"),
    "DSV41_WO_A_W8_DRAFT": _OFF,
    "DSV41_ENGRAM_PREFETCH": _implemented(r"[01]", "0 or 1; read by the prefetch adapter"),
    "DSV41_ENGRAM_PREFETCH_CHECK": _implemented(r"[01]", "0 or 1; read by the prefetch adapter"),
    "DSV41_DRAFT_HEAD_FP8": _OFF,
    "DSV41_DRAFT_TAU": _implemented(r"0\.[1-9][0-9]{0,3}|1(\.[0-9]{1,4})?|2(\.0{1,4})?", "0.1..2; 1 is off"),
    "DSV41_BLOCK_VERIFY": _implemented(r"[01]", "0 or 1"),
    "DSV41_VERIFY_CAP": _implemented(r"0|off|[1-5]|conf:[0-9.]+(,[0-9.]+)*|", "0, off, 1..5, conf:T or conf:a,b,c,d"),
    "DSV41_FOLDED_FENCE": _OFF,
    "DSV41_AUTOTUNE_KEEP": _implemented(r"[01]", "0 or 1"),
    # Of the lab alone: a known harm, with which the measurement is tried
    "DSV41_LAB_STEP_DELAY_PCT": _implemented(r"[0-9]|[1-9][0-9]|1[0-9]{2}|200", "0..200, in per cent; 0 is off"),
    "DSPARK_SPS_TABLE": _inert("/state/dspark_sps.json"),
    "DSPARK_STS_TABLE": _inert("/state/dspark_sts.json"),
    "DSPARK_ALIGN_VERIFY_TO_TIER": _OFF,
    "SGLANG_RAGGED_VERIFY_MODE": _inert("static"),
    "SGLANG_DSPARK_ENABLE_SPS_RECORD": _OFF,
    "SGLANG_TEST_RAGGED_VERIFY_FORCE_UNIFORM_CAPTURE": _OFF,
    "SGLANG_SIMULATE_ACC_LEN": _refused("a profiling knob; leave it unset"),
    # Engine shape
    "DSV41_TP_PAD": _inert("1"),
    "DSV41_MXFP8_BACKEND": _inert("b12x"),
    "DSV41_SERIAL_WEIGHT_LOAD": _OFF,
    "DSV41_INDEXER_CHUNKED": _OFF,
    "DSV41_INDEXER_LOGITS_BUDGET_BYTES": _inert(""),
    "DSV41_MAX_NEW_TOKENS": _inert("32768"),
    "DSV41_LOOP_ABORT": _inert("1"),
    "DSV41_REPLAY_GUARD": _inert("1"),
    "DSV41_LOOP_ABORT_NGRAM": _inert("32"),
    "DSV41_LOOP_ABORT_REPEATS": _inert("4"),
    "DSV41_LOOP_ABORT_LINE_REPEATS": _inert("8"),
    "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": _OFF,
    "SGLANG_DSV41_REASONING_EFFORT": _inert("75"),
    "DSV41_SHARED_PAD_K": _refused("a four-rank shape; it raises at three ranks"),
    "DSV41_LAUNCHER": _refused("a four-rank launcher"),
    # Network: the lab has one TCP link a pair
    "NCCL_NET": _inert("IB"),
    "NCCL_IB_DISABLE": _OFF,
    "NCCL_IB_HCA": _inert("rocep1s0f0,rocep1s0f1"),
    "NCCL_IB_GID_INDEX": _inert_pattern(r"[0-9]", "one digit, usually 3"),
    "NCCL_SOCKET_IFNAME": _inert_pattern(r"[A-Za-z0-9_.-]{1,15}", "the name of the management interface"),
    "NCCL_P2P_DISABLE": _inert("1"),
    "NCCL_SHM_DISABLE": _inert("1"),
    "NCCL_CROSS_NIC": _OFF,
    "NCCL_IB_MERGE_NICS": _OFF,
    "NCCL_IB_SUBNET_AWARE_ROUTING": _inert("1"),
    "NCCL_CUMEM_ENABLE": _OFF,
    "NCCL_BUFFSIZE": _inert("1048576"),
    "NCCL_LL128_BUFFSIZE": _inert("262144"),
    "NCCL_PROTO": _inert("^LL128"),
    "NCCL_MAX_NCHANNELS": _inert("8"),
    "NCCL_IB_USE_INLINE": _OFF,
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": _OFF,
    "NCCL_NET_GDR_LEVEL": _inert("LOC"),
    "NCCL_DMABUF_ENABLE": _inert("1"),
    "NCCL_DEBUG": _inert("INFO"),
    "NCCL_DEBUG_SUBSYS": _inert("INIT,NET,ENV"),
    "NCCL_SWITCHLESS_RING_ONLY": _refused("its gate requires four ranks"),
}


VOLATILE = frozenset(
    f"DSV41_{name}"
    for name in (
        "VERIFY_CAP",
        "DRAFT_TAU",
        "BLOCK_VERIFY",
        "FOLDED_FENCE",
        "AUTOTUNE_KEEP",
        "LAB_STEP_DELAY_PCT",
        "DRAFT_HEAD_FP8",
        "ENGRAM_PREFETCH",
        "ENGRAM_PREFETCH_CHECK",
        "WO_A_W8_DRAFT",
    )
)
"""Names that may change without a new autotune: they change no tuned shape."""


def tuned_environment(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Controlled names and values that belong to the fingerprint of an autotune cache, sorted."""
    return [
        (name, environ[name])
        for name in sorted(environ)
        if name.startswith(CONTROLLED_PREFIXES) and name not in VOLATILE
    ]


def check_environment(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Inert (name, value) pairs, sorted. EngineError TS-ENGINE-ENV for a name or value that is not accepted."""
    inert: list[tuple[str, str]] = []
    for name in sorted(environ):
        if not name.startswith(CONTROLLED_PREFIXES):
            continue
        value = environ[name]
        rule = RULES.get(name)
        if rule is None:
            raise _error(name, value, "unknown variable", "a name of the allowlist", "remove it or correct the name")
        if rule.kind == "refused":
            raise _error(name, value, "refused variable", f"not set ({rule.note})", "remove it")
        if re.fullmatch(rule.pattern, value) is None:
            what = "value of an inert variable" if rule.kind == "inert" else "value out of range"
            raise _error(name, value, what, rule.note, "set an accepted value or leave it unset")
        if rule.kind == "inert":
            inert.append((name, value))
    return inert


def _error(name: str, value: str, what: str, expected: str, remedy: str) -> EngineError:
    return EngineError(
        "TS-ENGINE-ENV",
        f"{what} {name}",
        where="environment",
        expected=expected,
        observed=f"{name}={value!r}",
        remedy=remedy,
    )

"""Whether a boot may take part in a verdict, judged before its speed is looked at.

A rule that nothing probes is "not checked": it is shown with the verdict and never counts as passed. Where the rule is
one that a KEEP rests on, there is no KEEP without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Status = Literal["passed", "failed", "not checked"]
Record = Mapping[str, Any]
KV_PIN: Final = "MAX_TOTAL_TOKENS"
KV_PAGE: Final = 256
"""Tokens: engines hold whole pages, so a pool may be this much below its pin."""
NEEDED: Final = ("gates", "requests", "kv_pin")
"""Without these a gain is not believed."""
UNPROBED: Final = ("foreign_traffic", "clocks", "power", "temperature", "network_errors", "memory_guard")
"""What a boot of this version has no probe for."""


@dataclass(frozen=True)
class Check:
    """One rule of one boot."""

    rule: str
    status: Status
    observed: str


def check_boot(record: Record) -> tuple[Check, ...]:
    """All rules of a boot record (record_model.BootRecord), in a fixed order."""
    return (
        _gates(record),
        _requests(record),
        _kv_pin(record),
        _acceptance(record),
        _quality(record),
        *(Check(rule, "not checked", "no probe") for rule in UNPROBED),
    )


def failed(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Those that a boot did not pass."""
    return tuple(check for check in checks if check.status == "failed")


def unchecked(boots: Sequence[Sequence[Check]]) -> tuple[str, ...]:
    """Rules that were not checked in some boot, in their order."""
    found = [check.rule for checks in boots for check in checks if check.status == "not checked"]
    return tuple(dict.fromkeys(found))


def failed_gates(record: Record) -> tuple[str, ...]:
    """Ids of the gates that did not pass, each once."""
    return tuple(dict.fromkeys(str(gate["check_id"]) for gate in record["gates"] if not gate["ok"]))


def _gates(record: Record) -> Check:
    outcome, gates = record["outcome"], record["gates"]
    if outcome["state"] != "valid":
        return Check("gates", "failed", str(outcome["reason"]))
    if not gates:
        return Check("gates", "not checked", "no gate was judged")
    return Check("gates", "passed", f"{len(gates)} gates")


def _requests(record: Record) -> Check:
    bench = record.get("bench")
    if not bench:
        return Check("requests", "not checked", "nothing was measured")
    requests = bench["requests"]
    wrong = sum(1 for request in requests if request.get("error"))
    return Check("requests", "failed" if wrong else "passed", f"{wrong} of {len(requests)} failed")


def _kv_pin(record: Record) -> Check:
    pin = record["resolved"]["settings"].get(KV_PIN)
    pool = record["observed"]["engine"].get("max_total_tokens")
    if not isinstance(pin, int) or isinstance(pin, bool):
        return Check("kv_pin", "not checked", "the configuration has no pin")
    if pool is None:
        return Check("kv_pin", "not checked", "the engine did not say")
    reached = pool >= pin // KV_PAGE * KV_PAGE
    return Check("kv_pin", "passed" if reached else "failed", f"{pool} tokens, pinned are {pin}")


def _acceptance(record: Record) -> Check:
    found = [gate for gate in record["gates"] if str(gate["check_id"]).endswith("accept_length")]
    if not found:
        return Check("acceptance", "not checked", "no band is declared for this engine")
    bad = [gate for gate in found if not gate["ok"]]
    return Check("acceptance", "failed" if bad else "passed", str((bad or found)[0]["observed"]))


def _quality(record: Record) -> Check:
    found = [gate for gate in record["gates"] if str(gate["check_id"]).startswith("quality.")]
    if not found:
        return Check("quality", "not checked", "nothing was asked")
    bad = [gate for gate in found if not gate["ok"]]
    observed = f"{bad[0]['check_id']}: {bad[0]['observed']}" if bad else f"{len(found)} answers judged"
    return Check("quality", "failed" if bad else "passed", observed)

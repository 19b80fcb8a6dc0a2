"""In-boot rounds: a switch of a running engine turned off and on by turns, to see whether a trial is worth its boots.

They are a screening and never a verdict: all rounds of a boot share its kernels, its memory and its caches, so a boot
is one number, and what is said of a feature is said over boots. Nothing here becomes a record, and nothing is KEEP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trispark.bench_plan import client_input
from trispark.benchstats import decode_tps
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.site import load_site
from trispark_bench.rounds import LEAST_ROUNDS, MOST_ROUNDS, ORDER, ROUNDS_PROTOCOL

RANK: Final = 0
"""The client runs beside the head: the switch of an engine without an API key obeys its own host alone. What that
costs, it costs both states alike."""
SLOWEST_TPS: Final = 5.0
"""A slower engine does not come to its end in time."""
LONGEST_HOLD_S: Final = 600.0
"""For so long an engine holds an order at most; a pass has to end before."""
TURN_S: Final = 30.0
"""Of a hold, for what is no request: the look at the switch and at the counters."""
AGENT_AT_MOST_S: Final = 86400.0
"""The longest deadline that the agent takes."""
GRACE_S: Final = 90.0
"""The agent ends the client so long after the client's own deadline: time for the way back."""


@dataclass(frozen=True)
class Word:
    """What an end of the rounds means."""

    error_id: str
    what: str
    expected: str
    remedy: str


AGAIN: Final = "the switch is as it was; read the engine's log, keep other clients away, and start the rounds again"
WORDS: Final = {
    "acknowledgement": Word(
        "TS-ROUNDS-ACK", "the ranks did not all acknowledge the switch", "every rank in this epoch", remedy=AGAIN
    ),
    "difference": Word(
        "TS-ROUNDS-DIFFERENT",
        "the switch changes the output: it is not bit-identical",
        "the same bytes",
        remedy="the switch is as it was; it is no switch of a running engine: correct in_boot of its entry",
    ),
    "repeat": Word(
        "TS-ROUNDS-REPEAT",
        "the engine does not repeat its own output, so nothing is known of the switch",
        "the same bytes in one state",
        remedy=AGAIN,
    ),
    "traffic": Word(
        "TS-ROUNDS-TRAFFIC",
        "the engine had other work than the rounds",
        "the requests of the rounds alone",
        remedy=AGAIN,
    ),
    "request": Word("TS-ROUNDS-RUN", "a request of the rounds failed", "an answer to every request", remedy=AGAIN),
    "engine": Word("TS-ROUNDS-RUN", "the rounds could not go on", "an engine that answers", remedy=AGAIN),
    "interrupted": Word("TS-ROUNDS-RUN", "the rounds were interrupted", "their end", remedy=AGAIN),
}


@dataclass(frozen=True)
class RoundsPlan:
    """`request`: what the load client reads, from the node of rank RANK. `running`: boot id of what serves."""

    site: str
    feature: str
    generation: str
    running: str
    engine: str
    image: str
    request: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """JSON form, with the rank that measures and the agent's deadline (s)."""
        return {**asdict(self), "rank": RANK, "deadline_s": self.request["bench"]["deadline_s"] + GRACE_S}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> RoundsPlan:
        """From its JSON form."""
        return cls(**{name: part for name, part in value.items() if name not in ("rank", "deadline_s")})


def plan_rounds(
    root: Path,
    site_name: str,
    running: Mapping[str, Any],
    statuses: Mapping[str, Mapping[str, Any] | None],
    feature: str,
    rounds: str,
) -> RoundsPlan:
    """The rounds of a feature that what runs holds. `running`: the plan of a look at it (boot_plan.plan_stored).

    Raises TS-FEATURE-UNKNOWN, TS-ROUNDS-FEATURE, TS-ROUNDS-ENGINE, TS-ROUNDS-OFF, TS-ROUNDS-COUNT, TS-ROUNDS-PASS,
    TS-ROUNDS-BOOT, TS-SITE-*, TS-WORKLOAD-*.
    """
    site, catalog = load_site(root / "inventory" / site_name, images="optional"), load_catalog(root)
    entry, engine = catalog.require_feature(feature or "(none)"), str(running["resolved"]["engine"])
    where = f"experiments/features.yml {feature}"
    can = [name for name in catalog.engines[engine].switches if name in catalog.features]
    if not entry.in_boot:
        raise TrisparkError(
            "TS-ROUNDS-FEATURE",
            f"{feature} is not proven to leave every output as it is, so it is no switch of a running engine",
            where,
            expected="in_boot: true",
            observed="in_boot: false",
            remedy=f"try it: ./trispark play stage_{entry.stages[0]} -e feature={feature}",
        )
    if feature not in can:
        raise TrisparkError(
            "TS-ROUNDS-ENGINE",
            f"no adapter of the engine {engine} acknowledges a switch of {feature} yet",
            where=f"experiments/engines.yml {engine}",
            expected=f"one of {', '.join(can)}" if can else "an engine with switches, such as the lab's",
            observed=feature,
            remedy=f"try it: ./trispark play stage_{entry.stages[0]} -e feature={feature}",
        )
    if not catalog.is_active(feature, running["resolved"]["settings"]):
        raise TrisparkError(
            "TS-ROUNDS-OFF",
            f"what runs was not started with {feature}, and only what is loaded can be switched",
            where=str(running["generation"]),
            expected=f"a boot of the candidate of {feature}, or of a baseline that holds it",
            observed=", ".join(f"{name}={running['resolved']['settings'].get(name)}" for name in _names(entry)),
            remedy=f"./trispark play boot -e feature={feature}, then the rounds; ./trispark play site goes back",
        )
    count = int(rounds) if rounds.isascii() and rounds.isdigit() else -1
    if not LEAST_ROUNDS <= count <= MOST_ROUNDS:
        raise TrisparkError(
            "TS-ROUNDS-COUNT",
            "there is no such number of rounds",
            where="rounds",
            expected=f"{LEAST_ROUNDS} to {MOST_ROUNDS}; one more is measured first and dropped",
            observed=rounds[:80] or "nothing",
            remedy=f"--rounds {LEAST_ROUNDS}",
        )
    bench = client_input(site, root)
    request_s = 1.0 + bench["max_tokens"] / SLOWEST_TPS
    hold_s = _hold_s(site_name, request_s, len(bench["workloads"]))
    deadline_s = _deadline_s(count, request_s * len(bench["workloads"]))
    input_ = {
        **bench,
        "base_url": f"http://127.0.0.1:{site.api_port}",
        "concurrency": [1],
        "contexts": None,
        "mixed": [],
        "repetitions": 1,
        "deadline_s": deadline_s,
    }
    request = {
        "protocol": ROUNDS_PROTOCOL,
        "switch": feature,
        "rounds": count,
        "world": len(running["nodes"]),
        "hold_s": hold_s,
        "bench": input_,
    }
    return RoundsPlan(
        site_name,
        feature,
        str(running["generation"]),
        _running_boot(running, statuses),
        engine,
        site.require_bench_image(),
        request,
    )


def _hold_s(site: str, request_s: float, workloads: int) -> float:
    """An order holds through the longest pass. Raises TS-ROUNDS-PASS where no order may hold so long."""
    hold_s = TURN_S + request_s * workloads
    if hold_s <= LONGEST_HOLD_S:
        return hold_s
    raise TrisparkError(
        "TS-ROUNDS-PASS",
        "a pass may take longer than an engine holds a switch",
        where=f"inventory/{site} site_bench",
        expected=f"at most {LONGEST_HOLD_S:g} s at {SLOWEST_TPS:g} tokens a second",
        observed=f"{hold_s:.0f} s: {workloads} workloads of {request_s:.0f} s each, and {TURN_S:g} s",
        remedy="fewer max_tokens or workloads in site_bench",
    )


def _deadline_s(count: int, pass_s: float) -> float:
    """Of the client. Raises TS-ROUNDS-COUNT where the agent would refuse it."""
    round_s = len(ORDER) * pass_s
    deadline_s = 120.0 + (count + 1) * round_s
    if deadline_s + GRACE_S <= AGENT_AT_MOST_S:
        return deadline_s
    # A pass is below LONGEST_HOLD_S, so the least number of rounds always fits.
    most = int((AGENT_AT_MOST_S - GRACE_S - 120.0) // round_s) - 1
    raise TrisparkError(
        "TS-ROUNDS-COUNT",
        "so many rounds may take longer than the agent lets a load client run",
        where="rounds",
        expected=f"at most {most}: {AGENT_AT_MOST_S:g} s at {SLOWEST_TPS:g} tokens a second",
        observed=f"{count}: {deadline_s + GRACE_S:.0f} s",
        remedy=f"--rounds {most}",
    )


def _names(entry: Any) -> list[str]:
    return [*entry.sets, *([] if entry.sweep is None else [entry.sweep.name])]


def _running_boot(running: Mapping[str, Any], statuses: Mapping[str, Mapping[str, Any] | None]) -> str:
    boots = {str(((status or {}).get("engine") or {}).get("boot_id")) for status in statuses.values()}
    if running["serving"] and len(boots) == 1:
        return boots.pop()
    raise TrisparkError(
        "TS-ROUNDS-BOOT",
        "what runs is not one healthy boot on all ranks",
        where=", ".join(sorted(statuses)),
        expected=f"one boot of {running['generation']}, ready on every rank",
        observed=", ".join(sorted(boots)),
        remedy="./trispark status shows the ranks, ./trispark play site boots the baseline",
    )


def effects_of(plan: RoundsPlan, output: Mapping[str, Any]) -> list[float]:
    """One number a counted round: the mean over its requests of log(rate on / rate off), each rate the geometric mean
    of both passes of its state.

    Raises TS-ROUNDS-* for rounds that do not count, first of all for a switch that is not known to be back.
    """
    restored, ended = output.get("restored"), output.get("ended")
    if restored is not None and not restored["verified"]:
        hold_s = float(plan.request["hold_s"])
        raise TrisparkError(
            "TS-ROUNDS-RESTORE",
            "the switch is not known to be back at what the generation says",
            where=f"boot {plan.running}",
            expected=f"{plan.feature} {'on' if restored['declared'] else 'off'} on every rank",
            observed="; ".join(part for part in (restored["why"], (ended or {}).get("what")) if part) or str(restored),
            remedy=f"wait {hold_s:g} s and ask the head for /lab/switches; ./trispark play site boots the baseline",
        )
    if ended is not None:
        raise end_of(plan, ended)
    count = int(plan.request["rounds"])
    wanted = [(index, place, on) for index in range(count + 1) for place, on in ORDER]
    passes = list(output.get("passes") or ())
    if [(each["round"], each["place"], each["on"]) for each in passes] != wanted:
        raise _incomplete(plan, f"{len(wanted)} passes in their order", f"{len(passes)} passes")
    identity = list(output.get("identity") or ())
    if len(identity) != 2 or identity[0] != identity[1]:
        raise _incomplete(plan, "the same engine at both ends", f"{identity}"[:300])
    rates = [[_rate(plan, request) for request in each["requests"]] for each in passes]
    if len({len(each) for each in rates}) != 1 or not rates[0]:
        raise _incomplete(plan, "the same requests in each pass", str(sorted({len(each) for each in rates})))
    found = []
    for index in range(1, count + 1):
        logs = [[math.log(rate) for rate in each] for each in rates[len(ORDER) * index : len(ORDER) * (index + 1)]]
        signed = [log if on else -log for (_, on), each in zip(ORDER, logs, strict=True) for log in each]
        # Two passes of each state; the same prompts in all of them.
        found.append(math.fsum(signed) / (2 * len(rates[0])))
    return found


def end_of(plan: RoundsPlan, ended: Mapping[str, Any]) -> TrisparkError:
    """The error of what the client says of the end, {code, what}."""
    word = WORDS[str(ended["code"])]
    return TrisparkError(
        word.error_id,
        word.what,
        where=f"{plan.feature} in boot {plan.running}",
        expected=word.expected,
        observed=str(ended["what"])[:300],
        remedy=word.remedy,
    )


def _rate(plan: RoundsPlan, request: Mapping[str, Any]) -> float:
    rate = decode_tps(request)
    if rate is None or not rate > 0:
        raise _incomplete(plan, "a decode rate of every request", f"none of {request.get('workload')}")
    return rate


def _incomplete(plan: RoundsPlan, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-ROUNDS-INCOMPLETE",
        "the rounds are not what was planned",
        where=f"boot {plan.running}",
        expected=expected,
        observed=observed,
        remedy="start the rounds again",
    )

"""In-boot rounds: a switch of a running engine turned off and on by turns, to see whether a trial is worth its boots.

They are a screening and never a verdict: all rounds of a boot share its kernels, its memory and its caches, so a boot
is one number, and what is said of a feature is said over boots. Nothing here becomes a record, and nothing is KEEP.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trispark.bench_plan import bench_input, client_input
from trispark.benchstats import decode_tps
from trispark.canonical import canonical_sha256
from trispark.catalog import load_catalog
from trispark.decision_rules import INTERVAL, MINIMUM_EFFECT
from trispark.errors import TrisparkError
from trispark.site import load_site
from trispark_bench.rounds import LEAST_ROUNDS, MOST_ROUNDS, ORDER, ROUNDS_PROTOCOL

SCHEMA_VERSION: Final = 1
RANK: Final = 0
"""The client runs beside the head: the switch of an engine without an API key obeys its own host alone. What that
costs, it costs both states alike."""
HOLD_S: Final = 300.0
SLOWEST_TPS: Final = 5.0
"""A slower engine does not come to its end in time."""
BOOTS: Final = 2
"""Fewer say nothing of how boots differ."""


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
        """JSON form."""
        return {**asdict(self), "rank": RANK}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> RoundsPlan:
        """From its JSON form."""
        return cls(**{name: part for name, part in value.items() if name != "rank"})


def plan_rounds(
    root: Path,
    site_name: str,
    running: Mapping[str, Any],
    statuses: Mapping[str, Mapping[str, Any] | None],
    feature: str,
    rounds: str,
) -> RoundsPlan:
    """The rounds of a feature that what runs holds. `running`: the plan of a look at it (boot_plan.plan_stored).

    Raises TS-FEATURE-UNKNOWN, TS-ROUNDS-FEATURE, TS-ROUNDS-ENGINE, TS-ROUNDS-OFF, TS-ROUNDS-COUNT, TS-ROUNDS-BOOT,
    TS-SITE-*, TS-WORKLOAD-*.
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
    requests = (count + 1) * len(ORDER) * len(bench["workloads"])
    input_ = {
        **bench,
        "base_url": f"http://127.0.0.1:{site.api_port}",
        "concurrency": [1],
        "contexts": None,
        "mixed": [],
        "repetitions": 1,
        "deadline_s": 120.0 + requests * (1.0 + bench["max_tokens"] / SLOWEST_TPS),
    }
    request = {
        "protocol": ROUNDS_PROTOCOL,
        "switch": feature,
        "rounds": count,
        "world": len(running["nodes"]),
        "hold_s": HOLD_S,
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
        raise TrisparkError(
            "TS-ROUNDS-RESTORE",
            "the switch is not known to be back at what the generation says",
            where=f"boot {plan.running}",
            expected=f"{plan.feature} {'on' if restored['declared'] else 'off'} on every rank",
            observed="; ".join(part for part in (restored["why"], (ended or {}).get("what")) if part) or str(restored),
            remedy=f"wait {HOLD_S:g} s and ask the head for /lab/switches; ./trispark play site boots the baseline",
        )
    if ended is not None:
        word = WORDS[str(ended["code"])]
        raise TrisparkError(
            word.error_id,
            word.what,
            where=f"{plan.feature} in boot {plan.running}",
            expected=word.expected,
            observed=str(ended["what"])[:300],
            remedy=word.remedy,
        )
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


@dataclass(frozen=True)
class RoundsOfBoot:
    """What the rounds of one boot gave: its one number is `log_ratio`, the mean of `rounds`. `work`: hash of what was
    asked, from which the image and the client's place are left out."""

    site: str
    feature: str
    generation: str
    boot: str
    time: str
    work: str
    rounds: tuple[float, ...]
    log_ratio: float

    @classmethod
    def judged(cls, plan: RoundsPlan, output: Mapping[str, Any], time: str) -> RoundsOfBoot:
        """Raises TS-ROUNDS-*."""
        effects = effects_of(plan, output)
        bench = {"rank": RANK, "image": plan.image, "input": plan.request["bench"]}
        work = canonical_sha256({name: part for name, part in bench_input(bench).items() if name != "image"})
        return cls(
            plan.site,
            plan.feature,
            plan.generation,
            plan.running,
            time,
            work,
            tuple(effects),
            math.fsum(effects) / len(effects),
        )

    def line(self) -> str:
        """For a person."""
        spread = statistics.stdev(self.rounds)
        return (
            f"boot {self.boot}: {self.feature} on against off {_percent(self.log_ratio)} "
            f"({len(self.rounds)} rounds, which vary by {100 * spread:.2f} %; outputs byte for byte the same)"
        )


@dataclass(frozen=True)
class Screening:
    """Over boots of one generation that did the same work. `low`, `high`: t interval; None for fewer than BOOTS."""

    boots: int
    log_ratio: float
    low: float | None
    high: float | None
    says: str

    def line(self) -> str:
        """For a person."""
        span = ""
        if self.low is not None and self.high is not None:
            span = f" [{_percent(self.low)}, {_percent(self.high)}] at {100 * INTERVAL:g} %"
        return f"{self.boots} {'boot' if self.boots == 1 else 'boots'}: {_percent(self.log_ratio)}{span}: {self.says}"


def screen(found: Sequence[RoundsOfBoot]) -> Screening:
    """What the boots say together; a boot whose rounds were repeated counts once, by its newest."""
    values = list({each.boot: each.log_ratio for each in sorted(found, key=lambda each: each.time)}.values())
    mean = math.fsum(values) / len(values)
    if len(values) < BOOTS:
        return Screening(len(values), mean, None, None, "one boot says nothing: boot it again, and repeat the rounds")
    from scipy import stats

    half = float(stats.t.ppf((1 + INTERVAL) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = mean - half, mean + half
    if high < 0:
        says = "slower while it is on; a screening, no verdict"
    elif low > 0 and mean >= math.log1p(MINIMUM_EFFECT):
        says = "worth a trial; a screening, no verdict"
    elif low > 0:
        says = "faster while it is on, by less than a trial would keep; a screening, no verdict"
    else:
        says = "no difference shown; a screening, no verdict"
    return Screening(len(values), mean, low, high, says)


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def rounds_directory(root: Path, site: str) -> Path:
    """Where the controller keeps the rounds of a site, a file a boot and feature."""
    return root / ".trispark" / site / "rounds"


def keep_rounds(root: Path, boot: RoundsOfBoot, output: Mapping[str, Any]) -> Path:
    """Write the number of a boot with all that was measured. Raises OSError."""
    directory = rounds_directory(root, boot.site)
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    target = directory / f"{boot.boot}-{boot.feature}.json"
    partial = target.with_suffix(".tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump({"schema_version": SCHEMA_VERSION, **asdict(boot), "output": output}, file, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    return target


def kept_rounds(root: Path, like: RoundsOfBoot) -> list[RoundsOfBoot]:
    """Boots of the same generation, feature and work. What cannot be read is left out: it is no evidence."""
    found = []
    for path in sorted(rounds_directory(root, like.site).glob(f"*-{like.feature}.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("schema_version") != SCHEMA_VERSION:
                continue
            content.pop("output")
            each = RoundsOfBoot(**{**content, "rounds": tuple(content["rounds"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if (each.generation, each.feature, each.work) == (like.generation, like.feature, like.work):
            found.append(each)
    return found


def judge_rounds(root: Path, plan: RoundsPlan, output: Mapping[str, Any], time: str) -> dict[str, Any]:
    """{"lines", "published"}: the boot's number, kept, and what all kept boots say. Raises TS-ROUNDS-*."""
    boot = RoundsOfBoot.judged(plan, output, time)
    path = keep_rounds(root, boot, output)
    screening = screen(kept_rounds(root, boot))
    restored = output["restored"]
    lines = [
        boot.line(),
        screening.line(),
        f"{plan.feature} is {'on' if restored['on'] else 'off'} again on every rank (epoch {restored['epoch']}), "
        "as the generation says",
    ]
    kept = os.path.relpath(path, root)
    published = {"boot": asdict(boot), "screening": asdict(screening), "restored": restored, "path": kept}
    return {"lines": lines, "published": {"rounds": published}}

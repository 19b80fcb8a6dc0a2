"""What in-boot rounds gave, kept a file a boot and feature, and what is said over boots."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trispark.bench_plan import bench_input
from trispark.boot_outcome import ALL_RANKS
from trispark.canonical import canonical_sha256
from trispark.decision_rules import INTERVAL, MINIMUM_EFFECT
from trispark.errors import TrisparkError
from trispark.rounds import RANK, RoundsPlan, effects_of, end_of

SCHEMA_VERSION: Final = 1
BOOTS: Final = 2
"""Fewer say nothing of how boots differ."""


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
        return cls(
            plan.site,
            plan.feature,
            plan.generation,
            plan.running,
            time,
            _work(plan),
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


def _work(plan: RoundsPlan) -> str:
    bench = {"rank": RANK, "image": plan.image, "input": plan.request["bench"]}
    return canonical_sha256({name: part for name, part in bench_input(bench).items() if name != "image"})


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


def screen(found: Sequence[RoundsOfBoot], different: Sequence[str] = ()) -> Screening:
    """What the boots say together; a boot whose rounds were repeated counts once, by its newest. `different`: boots in
    which the switch changed the output; one is enough, and no number is worth a trial."""
    values = list({each.boot: each.log_ratio for each in sorted(found, key=lambda each: each.time)}.values())
    mean = math.fsum(values) / len(values)
    if len(values) < BOOTS:
        says = "one boot says nothing: boot it again, and repeat the rounds"
        return Screening(len(values), mean, None, None, _different(different) or says)
    from scipy import stats

    half = float(stats.t.ppf((1 + INTERVAL) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = mean - half, mean + half
    if different:
        says = _different(different)
    elif high < 0:
        says = "slower while it is on; a screening, no verdict"
    elif low > 0 and mean >= math.log1p(MINIMUM_EFFECT):
        says = "worth a trial; a screening, no verdict"
    elif low > 0:
        says = "faster while it is on, by less than a trial would keep; a screening, no verdict"
    else:
        says = "no difference shown; a screening, no verdict"
    return Screening(len(values), mean, low, high, says)


def _different(boots: Sequence[str]) -> str:
    return f"the switch changed the output in {', '.join(boots)} (TS-ROUNDS-DIFFERENT): no trial" if boots else ""


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def rounds_directory(root: Path, site: str) -> Path:
    """Where the controller keeps the rounds of a site, a file a boot and feature."""
    return root / ".trispark" / site / "rounds"


def _file_of(root: Path, site: str, boot: str, feature: str) -> Path:
    return rounds_directory(root, site) / f"{boot}-{feature}.json"


def _read(path: Path) -> dict[str, Any]:
    """A kept file; empty when it cannot be read: it is no evidence."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("schema_version") == SCHEMA_VERSION else {}


def keep_rounds(root: Path, boot: RoundsOfBoot, output: Mapping[str, Any]) -> Path:
    """Write the number of a boot with all that was measured. Raises OSError."""
    return _write(root, {**asdict(boot), "ended": None, "different": None, "output": output})


def keep_ended(root: Path, plan: RoundsPlan, output: Mapping[str, Any], time: str, error: TrisparkError) -> Path:
    """Write that the rounds of a boot count for nothing, in place of an earlier number of it. Raises OSError."""
    ended = output.get("ended") or {}
    return _write(
        root,
        {
            "site": plan.site,
            "feature": plan.feature,
            "generation": plan.generation,
            "boot": plan.running,
            "time": time,
            "work": _work(plan),
            "rounds": [],
            "log_ratio": None,
            "ended": {"id": error.id, "line": str(error)},
            # Also where another error is said first, as of a switch that is not known to be back.
            "different": str(end_of(plan, ended)) if ended.get("code") == "difference" else None,
            "output": output,
        },
    )


def _write(root: Path, document: dict[str, Any]) -> Path:
    target = _file_of(root, document["site"], document["boot"], document["feature"])
    target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    # A switch that changed the output once is not made bit-identical by rounds in which it did not.
    before = _read(target).get("different")
    partial = target.with_suffix(".tmp")
    with partial.open("w", encoding="utf-8") as file:
        document = {**document, "different": document["different"] or before}
        json.dump({"schema_version": SCHEMA_VERSION, **document}, file, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    return target


def kept_rounds(root: Path, like: RoundsOfBoot) -> list[RoundsOfBoot]:
    """Boots that count, of the same generation, feature and work."""
    found = []
    for path in sorted(rounds_directory(root, like.site).glob(f"*-{like.feature}.json")):
        content = _read(path)
        # Files of before have neither `ended` nor `different`.
        ended = content.pop("ended", None)
        for name in ("schema_version", "output", "different"):
            content.pop(name, None)
        if ended is not None:
            continue
        try:
            each = RoundsOfBoot(**{**content, "rounds": tuple(content["rounds"])})
        except (TypeError, KeyError):
            continue
        if (each.generation, each.feature, each.work) == (like.generation, like.feature, like.work):
            found.append(each)
    return found


def different_boots(root: Path, site: str, feature: str, generation: str) -> list[str]:
    """Boots of the generation in which the switch changed the output, whatever their work was."""
    read = [_read(path) for path in sorted(rounds_directory(root, site).glob(f"*-{feature}.json"))]
    same = [each for each in read if (each.get("feature"), each.get("generation")) == (feature, generation)]
    return [str(each.get("boot")) for each in same if each.get("different")]


def play_failure(facts: Mapping[str, Mapping[str, Any]], behind: Sequence[str]) -> str:
    """Why the playbook did not pass the gates after the rounds, in a line; empty when all ranks did.

    facts   {node: what its tasks registered}, of which `failure` {task, result} is read
    behind  nodes that did not come to the end

    That a rank gave up because another did is said only when nothing else is known.
    """
    lines = []
    for _, fact in sorted(facts.items()):
        failure = fact.get("failure") or {}
        line = " ".join(str((failure.get("result") or {}).get("msg") or "").split())
        if failure:
            lines.append(line or f"{failure.get('task') or 'a task'} failed")
    if lines:
        return min(lines, key=lambda line: line.startswith(f"{ALL_RANKS}:"))
    return f"not reached after the rounds: {', '.join(behind)}" if behind else ""


def judge_rounds(
    root: Path, plan: RoundsPlan, output: Mapping[str, Any], time: str, failure: str = ""
) -> dict[str, Any]:
    """{"lines", "published", "failure_line"}: the boot's number and what all kept boots say, or why it has none; either
    is kept. `failure`: what failed in the playbook (`play_failure`). Raises OSError."""
    try:
        boot = RoundsOfBoot.judged(plan, output, time)
        if failure:
            raise _gates(plan, failure)
    except TrisparkError as error:
        path = keep_ended(root, plan, output, time, error)
        ended = {"id": error.id, "line": str(error), "path": os.path.relpath(path, root)}
        return {
            "lines": [str(error)],
            "published": {"rounds": {"ended": ended, "restored": output.get("restored")}},
            "failure_line": failure or str(error),
        }
    path = keep_rounds(root, boot, output)
    screening = screen(kept_rounds(root, boot), different_boots(root, plan.site, plan.feature, plan.generation))
    restored = output["restored"]
    lines = [
        boot.line(),
        screening.line(),
        f"{plan.feature} is {'on' if restored['on'] else 'off'} again on every rank (epoch {restored['epoch']}), "
        "as the generation says",
    ]
    kept = os.path.relpath(path, root)
    published = {"boot": asdict(boot), "screening": asdict(screening), "restored": restored, "path": kept}
    return {"lines": lines, "published": {"rounds": published}, "failure_line": ""}


def _gates(plan: RoundsPlan, failure: str) -> TrisparkError:
    return TrisparkError(
        "TS-ROUNDS-GATES",
        "the gates were not passed after the rounds, so they count for nothing",
        where=f"boot {plan.running}",
        expected="every gate of a load, on every rank",
        observed=failure[:300],
        remedy="./trispark verify judges what runs; ./trispark play site boots the baseline",
    )

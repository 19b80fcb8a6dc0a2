"""Records of whole trials, made with the project's own planner and builders, as a walk of the lab would leave them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trispark.bench_windows import WindowCheck
from trispark.benchstats import summarize
from trispark.campaign_run import campaigns_directory
from trispark.canonical import text_sha256
from trispark.gates import GateResult
from trispark.noise_floor import SiteNoise
from trispark.plan import Ground
from trispark.project import ProjectState
from trispark.records import RecordCache, build_boot_record
from trispark.resolve import restore
from trispark.step_time import StepCheck
from trispark.trial_metrics import is_decided
from trispark.trial_outcome import record_trial, trials_to_record
from trispark.walk_journal import Journal
from trispark.walk_plan import WalkPlan, plan_walk

REPOSITORY = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "a" * 64
GIB = 1024**3
ENDED = datetime(2026, 1, 2, 8, tzinfo=UTC)
ROWS = {1: 200_001, 14: 200_005}


def walk_id(number: int) -> str:
    return f"t202601{number:02}T030405Z-a1b2"


def lab_ground(noise: SiteNoise | None = None) -> Ground:
    """The lab of this tree with images, as after `lab up`."""
    loaded = Ground.load(REPOSITORY, "lab")
    image = f"registry:5000/trispark/lab-engine@{DIGEST}"
    bench = f"registry:5000/trispark/bench@{DIGEST}"
    site = loaded.site.model_copy(update={"engine_image": image, "bench_image": bench})
    # These records have no windows of a load, and so no metric that a mechanism could be seen in.
    features = {name: feature.model_copy(update={"moves": ()}) for name, feature in loaded.catalog.features.items()}
    catalog = replace(loaded.catalog, features=features)
    return replace(loaded, catalog=catalog, site=site, image=image, promoted={}, promoted_by=None, noise=noise)


class LabRecords:
    """A site's records below `root`. `hostile` is put wherever a record holds a text of somebody else."""

    def __init__(self, root: Path, *, hostile: str = "", requests: int = 5, noise: SiteNoise | None = None) -> None:
        self.root = root
        self.hostile = hostile
        self.requests = requests
        self.ground = lab_ground(noise)
        self.cache = RecordCache(root / ".trispark" / "lab" / "records")
        self.random = random.Random(20260102)
        self.project = ProjectState("0.1.0", "f" * 40, False)

    def plan(self, number: int = 2, feature: str = "wo_a", value: str | None = None, boots: int = 6) -> WalkPlan:
        return plan_walk(self.ground, walk_id(number), "c" if feature == "wo_a" else "b", feature, value, boots=boots)

    def trial(
        self,
        walk: WalkPlan,
        gain: float = 0.04,
        *,
        made: int | None = None,
        stopped: str = "",
        spoil: Callable[[int, dict[str, Any]], object] = lambda slot, parts: None,
    ) -> list[dict[str, Any]]:
        """All boots of a walk, or the first `made`, the boot that restores the baseline, and the trials' records.

        `spoil` may change {"gates", "bench", "outcome", "observations"} of a slot's boot.
        """
        made_so_far: dict[int, Any] = {}
        for slot in walk.slots[:made]:
            if is_decided(walk, slot, made_so_far):
                continue
            made_so_far[slot.slot] = self.boot(
                walk, slot.slot, slot.generation, slot.arm, gain if slot.arm == "candidate" else 0.0, spoil
            )
        restored = self.boot(walk, len(walk.slots), walk.site_baseline, None, 0.0, spoil, purpose="restore")
        found = []
        for boots in trials_to_record(walk, Journal(self.root / "none").read(), self.cache.list(), stopped):
            record = record_trial(
                self.root, self.ground.catalog.allowlist, walk, boots, self.cache, restored_boot=restored["id"],
                began="2026-01-02T03:04:05Z", previous=self.cache.head(), now=ENDED,
            )  # fmt: skip
            self.cache.add(record)
            found.append(record)
        return found

    def boot(
        self,
        walk: WalkPlan,
        slot: int,
        generation: str,
        arm: str | None = "baseline",
        gain: float = 0.0,
        spoil: Callable[[int, dict[str, Any]], object] = lambda slot, parts: None,
        purpose: str = "trial",
    ) -> dict[str, Any]:
        """One boot of a walk, kept."""
        head = self.cache.head()
        number = 1 if head is None else head["seq"] + 1
        boot_id = f"b20260102T{number // 60:02}{number % 60:02}00Z-{number:04x}"
        resolution = restore(walk.resolved[generation])
        parts: dict[str, Any] = {
            "gates": self._gates(arm == "candidate", walk.feature),
            "bench": self._bench(gain) if purpose == "trial" else None,
            "outcome": {"state": "valid", "reason": "all gates passed", "good": False},
            "observations": {f"spark{rank}": self._observed(rank, resolution.resolved["image"]) for rank in range(3)},
        }
        spoil(slot, parts)
        record = build_boot_record(
            record_id=boot_id,
            site="lab",
            resolution=resolution,
            allowlist=self.ground.catalog.allowlist,
            project=self.project,
            requested={"stage": walk.stage, "trial": walk.walk, "slot": slot, "purpose": purpose, "arm": arm}
            | ({"feature": walk.feature, "value": walk.value} if arm == "candidate" else {}),
            boot_id=boot_id,
            epoch=number,
            observations=parts["observations"],
            timings={
                "started_at": "2026-01-02T03:05:00Z",
                "ended_at": "2026-01-02T03:06:00Z",
                "phases": {"total": 60.0 + number / 10, "start_to_ready": 2.5 + number / 100},
            },
            gates=parts["gates"],
            bench=parts["bench"],
            summary=None if parts["bench"] is None else summarize(parts["bench"]),
            outcome=parts["outcome"],
            previous=head,
        )
        self.cache.add(record)
        return record

    def campaign(self, name: str, entries: Sequence[tuple[str, str, str]]) -> None:
        """The journal of a campaign: (label, walk, `ended`, `failed` or `under way`) an entry."""
        journal = Journal(campaigns_directory(self.root, "lab") / name)
        journal.write("began", "2026-01-02T03:00:00Z", digest="0" * 64)
        for index, (label, walk, state) in enumerate(entries):
            journal.write("entry_started", "2026-01-02T03:00:00Z", index=index, trial=walk, label=label)
            if state == "ended":
                journal.write("entry_ended", "2026-01-02T04:00:00Z", index=index, trial=walk, verdicts=[])
            elif state == "failed":
                journal.write(
                    "entry_failed", "2026-01-02T04:00:00Z", index=index, trial=walk, unfinished=False,
                    reason=f"spark1 was lost {self.hostile}",
                )  # fmt: skip

    def _gates(self, candidate: bool, feature: str) -> list[GateResult]:
        found = []
        for rank in range(3):
            where = f"[2026-01-02 03:05:00 TP{rank} EP{rank}]"
            seen = (
                f"{where} [{feature}] fp8 twins for 4 weights, 0 left {self.hostile}" if candidate else "no such line"
            )
            asked = "a line: The adapter acted in this process." if candidate else "no line: The adapter acted in it."
            packed = "layer 1: packed=True; layer 14: packed=True"
            found += [
                GateResult("identity.image_digest", rank, True, DIGEST, DIGEST),
                GateResult("env.effective", rank, True, "the image's environment overlaid", "62 variables as planned"),
                GateResult("engram.packed", rank, True, packed, packed),
                GateResult(f"evidence.{feature}.present", rank, True, asked, seen),
                GateResult("evidence.packed.fallback", rank, True, "no line: two reads a row", "no such line"),
            ]
        return [*found, GateResult("canary.text", None, True, "HTTP 200, '42'", f"HTTP 200, '42' {self.hostile}")]

    def _observed(self, rank: int, image: str) -> dict[str, Any]:
        prefix = f"[2026-01-02 03:05:00 TP{rank} EP{rank}] "
        lines = [
            "server_args={'tp_size': 3, 'ep_size': 3, 'max_running_requests': 4, 'max_total_tokens': 750000, "
            "'speculative_dspark_block_size': 3}"
        ]
        for layer, rows in ROWS.items():
            first, end = rows * rank // 3, rows * (rank + 1) // 3
            size, state = "cache=0.0GiB (0 slots, 4-way, 0.0% of owned rows)", "packed=True"
            lines += [
                f"Exact nvme Engram layer={layer} rank={rank} rows=[{first},{end}) {size} scales=0.0GiB "
                f"io_threads=96 {state}",
                f"Engram layer={layer} lookups=160 hit_rate=0.0% reads=160 cache=0.0GiB(4-way) scales=0.0GiB "
                f"threads=96 {state}",
            ]
        return {
            "container_id": f"c{rank}",
            "image_id": DIGEST,
            "image_ref": image,
            "image_digests": [image],
            "started_at": "2026-01-02T03:05:00Z",
            "versions": {
                "engine": "trispark_lab 0.1.0",
                "packages": {"numpy": "2.4.6"},
                "kernel": {"release": "6.1.0"},
            },
            "memory": {
                "resident_bytes": int((0.4 + 0.05 * rank + self.random.uniform(0, 0.01)) * GIB),
                "memory_available_bytes": int((18 + self.random.uniform(0, 0.1)) * GIB),
                "memory_total_bytes": 23 * GIB,
            },
            "log": "".join(f"{prefix}{line}\n" for line in lines),
        }

    def _window(self, tag: str, tokens: float) -> dict[str, Any]:
        missing = ("prompt tokens",) if tag == "c4" else ()
        return {
            **asdict(WindowCheck(tag, 320, 5, 105, tokens, 2, 0.068, 0, None, missing)),
            "not_checked": list(missing),
        }

    def _step(self, tag: str, seconds: float) -> dict[str, Any]:
        lines = seconds * (1 + self.random.gauss(0, 0.002))
        return asdict(StepCheck(tag, 12, lines, seconds, seconds / lines - 1, 0.02, None, None))

    def _bench(self, gain: float) -> dict[str, Any]:
        """What the load client writes: five requests a workload, waves of four, rank 0's counters around each."""
        boot = self.random.gauss(0, 0.004)
        requests: list[dict[str, Any]] = []
        waves = []
        phases = []
        for tag, rate in (("c1-prose", 31.0), ("c1-code", 44.0), ("c4", 21.0)):
            for index in range(self.requests * (4 if tag == "c4" else 1)):
                seconds = 63 / (rate * (1 + gain) * (1 + boot + self.random.gauss(0, 0.006)))
                first = 0.31 * (1 + self.random.gauss(0, 0.01))
                requests.append({
                    "tag": tag, "index": index, "completion_tokens": 64, "ttft_s": round(first, 5),
                    "total_s": round(first + seconds, 5), "text_sha": text_sha256(f"{tag} {index}"), "error": None,
                    "finish_reason": f"length{self.hostile}", "events": 22, "first_tokens": 1,
                    "at_ns": [int(1e9 * (first + seconds * event / 21)) for event in range(22)],
                    "sizes": [180] * 22, "kinds": "c" * 22,
                })  # fmt: skip
            wait = 0.8 * (1 - 8 * gain) * (1 + self.random.gauss(0, 0.03))
            after = {"lookups": 4096, "reads": 4096, "wait_s": round(wait, 6)}
            zero = {"lookups": 0, "reads": 0, "wait_s": 0.0}
            engram = [{"engram": {"1": each, "14": each}} for each in (zero, after)]
            phases.append({"tag": tag, "before": engram[0], "after": engram[1]})
        for index in range(self.requests):
            speed = 84 * (1 + gain) * (1 + boot + self.random.gauss(0, 0.006))
            waves.append({"tag": "c4", "index": index, "tokens": 256, "wall_s": round(256 / speed, 5), "errors": 0})
        bench = self.ground.site.bench
        return {
            "requests": requests,
            "waves": waves,
            "server_info": phases,
            "checks": [self._window(tag, 3 * 63 / 21 / (1 + gain)) for tag in ("c1-prose", "c1-code", "c4")],
            "steps": [self._step(tag, 0.068 / (1 + gain)) for tag in ("c1-prose", "c1-code", "c4")],
            "input": {
                "repetitions": bench.repetitions, "max_tokens": 64, "warmup_tokens": 16, "concurrency": [1, 4],
                "protocol": 2, "rank": 1, "image": f"registry:5000/trispark/bench@{DIGEST}",
                "workloads": {"prose": [text_sha256("prose")], "code": [text_sha256("code")]},
            },
        }  # fmt: skip

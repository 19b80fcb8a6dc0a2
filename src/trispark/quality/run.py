"""The long set on the controller: what is asked of a running generation, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.boot_plan import BENCH_RANK
from trispark.canonical import canonical_sha256
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.gate_result import GateResult
from trispark.quality.evaluate import Answered, code_to_run, compare_all, judge_long
from trispark.quality.judges import distinct
from trispark.quality.model import EngineQuality
from trispark.quality.questions import Asker, Question, requests
from trispark.quality.reference import Likeness, packed, unpacked, worst
from trispark.quality.sandbox import executed, sandbox_request
from trispark.site import load_site

FILE: Final = "reference.json"
CHAT: Final = "/v1/chat/completions"
Raw = Mapping[str, Any]


@dataclass(frozen=True)
class LongSet:
    """The questions for one running generation (its `resolved`), in rounds."""

    site: str
    resolved: Mapping[str, Any]
    quality: EngineQuality
    repeat: tuple[str, ...]
    rounds: tuple[tuple[Question, ...], ...]
    image: str

    @classmethod
    def load(cls, root: Path, site_name: str, resolved: Mapping[str, Any]) -> LongSet:
        """From the controller's catalog and site. Raises TS-SITE-*, TS-CATALOG-*, TS-YAML-*, TS-QUALITY-REPEATS."""
        site = load_site(root / "inventory" / site_name, images="optional")
        quality = load_catalog(root).quality[str(resolved["engine"])]
        if unknown := sorted(set(site.quality_repeats) - set(quality.workloads)):
            raise TrisparkError(
                "TS-QUALITY-REPEATS",
                "the site names a workload that is not asked",
                where=f"{site.path} site_quality_repeats",
                expected=f"some of {', '.join(quality.workloads)}",
                observed=unknown[0],
                remedy="correct site_quality_repeats",
            )
        slots = int(resolved["settings"]["MAX_RUNNING_REQUESTS"])
        rounds = Asker(quality, str(resolved["gates"]["canary"]["model"]), slots).rounds(site.quality_repeats)
        return cls(site_name, resolved, quality, site.quality_repeats, rounds, site.require_bench_image())

    @property
    def questions(self) -> list[Question]:
        """All rounds, one after the other, as their answers come."""
        return [question for asked in self.rounds for question in asked]

    def requests(self) -> list[list[dict[str, Any]]]:
        """A round each, for the agent's verb `request-batch` on the head."""
        base = str(self.resolved["gates"]["canary"]["url"]).removesuffix(CHAT)
        return [requests(asked, base, self.quality.timeout_s) for asked in self.rounds]

    def sandbox(self, raw: Sequence[Raw]) -> dict[str, Any]:
        """{rank, request}: for the agent's verb `oneshot` on that rank; without code there is no request."""
        pieces = code_to_run(self.quality, self.questions, raw)
        return {"rank": BENCH_RANK, "request": sandbox_request(self.image, pieces) if pieces else {}}

    def results(self, raw: Sequence[Raw], sandbox: Raw | None) -> list[GateResult]:
        """Raises TS-QUALITY-SANDBOX."""
        bands = [(float(low), float(high)) for low, high in self.resolved["gates"].get("accept_bands", [])]
        return judge_long(self.quality, self.questions, raw, bands, self.repeat, executed(sandbox))

    def notes(self, raw: Sequence[Raw]) -> list[str]:
        """What is said and not judged: how often a text that need not repeat did."""
        answered = Answered.of(self.questions, raw)
        texts = answered.starting("mixed.sampled.")
        return [f"{distinct(list(texts.values()))} texts of {len(texts)} sampled requests"]

    @property
    def _asked(self) -> str:
        return canonical_sha256([[each.name, dict(each.body)] for each in self.questions if "logprobs" in each.body])

    def keep(self, path: Path, raw: Sequence[Raw]) -> None:
        """Make these answers the site's reference. Raises OSError."""
        known = Answered.of(self.questions, raw).starting("logprobs.")
        content = {"generation": _identity(self.resolved), "asked": self._asked, "answers": packed(known)}
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(content, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(path)

    def beside(self, path: Path, raw: Sequence[Raw]) -> GateResult | None:
        """These answers beside the site's reference; None where none was kept. Raises TS-QUALITY-REFERENCE for one of
        other questions, or that cannot be read."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known, asked, of = unpacked(content["answers"]), content["asked"], str(content["generation"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unusable(path, f"{type(error).__name__}: {error}"[:200]) from None
        if asked != self._asked:
            raise _unusable(path, "answers to other questions")
        likeness, reason = worst(compare_all(self.quality, known, self.questions, raw))
        return GateResult(
            "quality.reference",
            None,
            likeness is not Likeness.DIVERGENT,
            f"the answers of {of}, or equivalent ones",
            f"{likeness.name}: {reason}",
            "" if likeness is not Likeness.DIVERGENT else "compare the settings of both generations",
        )


def reference_path(root: Path, site_name: str) -> Path:
    """Where the controller keeps the reference of a site."""
    return root / ".trispark" / site_name / "quality" / FILE


def _identity(resolved: Mapping[str, Any]) -> str:
    from trispark.canonical import generation_id

    return generation_id(dict(resolved))


def _unusable(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-QUALITY-REFERENCE",
        "the reference cannot be compared with",
        where=str(path),
        expected="answers to the questions of now",
        observed=observed,
        remedy="boot the baseline, then ./trispark play quality -e reference=keep",
    )

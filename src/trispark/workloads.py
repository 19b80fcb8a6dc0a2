"""The prompts of experiments/workloads/, checked when they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from trispark.canonical import canonical_sha256
from trispark.errors import TrisparkError
from trispark.filler import filler
from trispark.plainyaml import Strict, check_model, read_yaml

FILE: Final = "experiments/workloads/prompts.yml"
HASHES: Final = "experiments/workloads/hashes.yml"
SHORT: Final = "short"
"""The context without a text of its own."""
_FILLER: Final = re.compile(r"\{filler:(\d{1,5}):(\d{1,5})\}")
Text = Annotated[str, Field(min_length=1)]


class Draw(Strict):
    """How answers are drawn; temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class WorkloadsFile(Strict):
    """experiments/workloads/prompts.yml. `{filler:N:SEED}` in a text stands for N sentences (trispark.filler)."""

    schema_version: Literal[1]
    workloads: dict[str, Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]]
    sampled: dict[str, Draw] = Field(default_factory=dict)
    contexts: dict[str, Text] = Field(default_factory=dict)
    prefill: Text | None = None


class HashesFile(Strict):
    """experiments/workloads/hashes.yml: {corpus: sha256}."""

    schema_version: Literal[1]
    hashes: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


@dataclass(frozen=True)
class Corpora:
    """All texts, filled. `contexts` has SHORT, which is empty; `prefill` is the long prompt of the mixed cells."""

    prompts: dict[str, tuple[str, ...]]
    draws: dict[str, Draw]
    contexts: dict[str, str]
    prefill: str | None

    def workload(self, name: str) -> dict[str, Any]:
        """The load client's form. Raises TS-WORKLOAD-UNKNOWN."""
        _require(name, self.prompts, "workload", "site_bench.workloads")
        draw = self.draws.get(name, Draw())
        return {"prompts": list(self.prompts[name]), "temperature": draw.temperature, "top_p": draw.top_p}

    def context(self, name: str) -> str:
        """The text that stands before each prompt. Raises TS-WORKLOAD-UNKNOWN."""
        _require(name, self.contexts, "context", "site_bench.contexts")
        return self.contexts[name]

    def long_prompt(self) -> str:
        """The prompt that arrives while others decode. Raises TS-WORKLOAD-UNKNOWN."""
        _require("prefill", ("prefill",) if self.prefill else (), "text", "site_bench.mixed")
        return str(self.prefill)

    def hashes(self) -> dict[str, str]:
        """{corpus: sha256 of what is sent}, of every workload, context and the long prompt."""
        found = {name: canonical_sha256(self.workload(name)) for name in self.prompts}
        found |= {f"context {name}": canonical_sha256(text) for name, text in self.contexts.items() if text}
        if self.prefill:
            found["prefill"] = canonical_sha256(self.prefill)
        return dict(sorted(found.items()))


def read_corpora(root: Path) -> Corpora:
    """All of the file. Raises TS-WORKLOAD-SCHEMA."""
    file = check_model(WorkloadsFile, read_yaml(root / FILE), FILE, "TS-WORKLOAD-SCHEMA")
    surplus = sorted(set(file.sampled) - set(file.workloads))
    if surplus:
        raise TrisparkError(
            "TS-WORKLOAD-SCHEMA",
            "sampled names a workload that is not there",
            where=FILE,
            expected=f"among {', '.join(file.workloads)}",
            observed=", ".join(surplus),
            remedy="correct the name",
        )
    return Corpora(
        prompts={name: tuple(_filled(text) for text in texts) for name, texts in file.workloads.items()},
        draws=dict(file.sampled),
        contexts={SHORT: "", **{name: f"{_filled(text)}\n\n" for name, text in file.contexts.items()}},
        prefill=None if file.prefill is None else _filled(file.prefill),
    )


def load_workloads(root: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    """{workload: prompts} for `names`, in their order. Raises TS-WORKLOAD-UNKNOWN and TS-WORKLOAD-SCHEMA."""
    corpora = read_corpora(root)
    return {name: corpora.workload(name)["prompts"] for name in names}


def recorded_hashes(root: Path) -> dict[str, str]:
    """{corpus: sha256} as the file of hashes has them. Raises TS-WORKLOAD-SCHEMA."""
    return check_model(HashesFile, read_yaml(root / HASHES), HASHES, "TS-WORKLOAD-SCHEMA").hashes


def _filled(text: str) -> str:
    return _FILLER.sub(lambda match: filler(int(match[1]), int(match[2])), text)


def _require(name: str, known: Any, kind: str, where: str) -> None:
    if name not in known:
        raise TrisparkError(
            "TS-WORKLOAD-UNKNOWN",
            f"there is no {kind} {name!r}",
            where=where,
            expected=f"one of {', '.join(known)}",
            observed=name,
            remedy=f"correct site_bench, or describe it in {FILE}",
        )

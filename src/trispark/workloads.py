"""The prompts of experiments/workloads/, checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml

FILE: Final = "experiments/workloads/prompts.yml"


class WorkloadsFile(Strict):
    """experiments/workloads/prompts.yml: {workload: prompts}."""

    schema_version: Literal[1]
    workloads: dict[str, Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1, strict=False)]]


def load_workloads(root: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    """{workload: prompts} for `names`, in their order. Raises TS-WORKLOAD-UNKNOWN."""
    known = check_model(WorkloadsFile, read_yaml(root / FILE), FILE, "TS-WORKLOAD-SCHEMA").workloads
    for name in names:
        if name not in known:
            raise TrisparkError(
                "TS-WORKLOAD-UNKNOWN",
                f"there is no workload {name!r}",
                where="site_bench.workloads",
                expected=f"one of {', '.join(known)}",
                observed=name,
                remedy=f"correct site_bench, or describe the workload in {FILE}",
            )
    return {name: list(known[name]) for name in names}

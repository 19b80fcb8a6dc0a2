"""experiments/quality.yml: what the quality gates ask an engine, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from trispark.catalog_model import Id
from trispark.plainyaml import Strict
from trispark.quality.sandbox_program import parsed

ACCEPT_FLOOR: Final = 1.2
"""Committed tokens a step. A broken draft gives exactly 1.0 and leaves the text fluent (field I39), so text shows
nothing; no working draft was seen below 1.5."""
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[int, Field(ge=1, le=4096)]
Nats = Annotated[float | int, Field(ge=0, le=10)]


class Task(Strict):
    """A question that a program can mark. text: the answer must be `expect`; json: an object that fits `json_schema`;
    code: Python in which every one of `checks` (CALL == LITERAL, CALL or not CALL) is true; tool: a call of `tool` with
    these `arguments`."""

    id: Id
    kind: Literal["text", "json", "code", "tool"]
    prompt: Text
    max_tokens: Tokens
    expect: str | None = None
    json_schema: dict[str, Any] | None = None
    checks: tuple[Text, ...] = ()
    tool: str | None = None
    arguments: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Task:
        given = {
            "text": self.expect is not None,
            "json": self.json_schema is not None,
            "code": bool(self.checks),
            "tool": self.tool is not None and bool(self.arguments),
        }
        if [kind for kind, there in given.items() if there] != [self.kind]:
            raise ValueError(f"a task of kind {self.kind} has what that kind needs, and nothing of another")
        for check in self.checks:
            parsed(check)
        return self


class Needle(Strict):
    """A fact hidden in a long text: `filler` is repeated, numbered, to `sentences` lines, and at each of `depths`
    (shares of them) the line `fact` stands in place of one; `{code}` is a word that occurs nowhere else."""

    filler: Text
    fact: Text
    question: Text
    sentences: tuple[Annotated[int, Field(ge=10, le=100_000)], ...] = Field(min_length=1)
    depths: tuple[Annotated[float | int, Field(ge=0, le=1)], ...] = Field(min_length=1)
    max_tokens: Tokens

    @model_validator(mode="after")
    def _has_code(self) -> Needle:
        if "{code}" not in self.fact or "{number}" not in self.filler:
            raise ValueError("fact holds {code}, filler holds {number}")
        return self


class Equivalence(Strict):
    """When other answers than the reference's are still the same model. `mean_nats`: mean difference of the
    logarithms of the common tokens; `tie_nats`: how near the two tokens were where the texts part; `why`: the reason
    for both."""

    mean_nats: Nats
    tie_nats: Nats
    why: Text


class Short(Strict):
    """What every boot is asked, all at once: greedy text of `workload` with logarithms, and these tasks."""

    workload: Id
    max_tokens: Tokens
    tasks: tuple[Id, ...]


class EngineQuality(Strict):
    """The questions for one engine. `body`: what every chat request has besides; `workloads`: {name: prompts};
    `batch_invariant`: whether an answer does not depend on what runs beside it."""

    body: dict[str, Any] = Field(default_factory=dict)
    timeout_s: Annotated[int, Field(ge=1, le=3600)]
    batch_invariant: bool
    workloads: dict[Id, tuple[Text, ...]] = Field(min_length=1)
    max_tokens: Tokens
    repeats: Annotated[int, Field(ge=2, le=20)]
    minimum_ascii_share: Annotated[float | int, Field(gt=0, le=1)]
    tasks: tuple[Task, ...]
    needles: tuple[Needle, ...]
    equivalence: Equivalence
    short: Short

    @model_validator(mode="after")
    def _names(self) -> EngineQuality:
        ids = [task.id for task in self.tasks]
        if len(set(ids)) != len(ids):
            raise ValueError("a task is there twice")
        if unknown := sorted(set(self.short.tasks) - set(ids)):
            raise ValueError(f"short names {unknown[0]}, which is no task")
        if any(self.task(name).kind == "code" for name in self.short.tasks):
            raise ValueError("short has no task whose code is executed: a boot starts no sandbox")
        if self.short.workload not in self.workloads:
            raise ValueError(f"short names {self.short.workload}, which is no workload")
        return self

    def task(self, name: str) -> Task:
        """The task of that id."""
        return next(task for task in self.tasks if task.id == name)

    def short_set(self) -> dict[str, Any]:
        """JSON form of what the short set needs alone, as a generation keeps it."""
        own = self.workloads[self.short.workload][:1]
        kept = {
            "workloads": {self.short.workload: own},
            "tasks": tuple(map(self.task, self.short.tasks)),
            "needles": (),
        }
        return self.model_copy(update=kept).model_dump(mode="json", exclude_none=True)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> EngineQuality:
        """From its JSON form. Raises ValueError (pydantic's) for another one."""
        return cls.model_validate_json(json.dumps(value))


class QualityFile(Strict):
    """experiments/quality.yml."""

    schema_version: Literal[1]
    engines: dict[Id, EngineQuality]

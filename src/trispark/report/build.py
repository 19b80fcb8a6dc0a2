"""A whole report from what was asked for, at one of several sizes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from trispark.report.measured import Measured, measured
from trispark.report.page import Banner, Block, Cell, Commands, Download, Page, Section, Text, table
from trispark.report.ranks import evidence_section, memory_section, validity_section
from trispark.report.raw import archive, boots_section, plotted, records_section
from trispark.report.sources import Asked, EntrySource
from trispark.report.steps import time_section
from trispark.report.trial import (
    banner_of,
    changed_section,
    label_of,
    reproduce_section,
    requested_of,
    speed_section,
    summary_section,
)
from trispark.report.words import TONES, effect, shortened, span


@dataclass(frozen=True)
class Content:
    """What a report holds besides verdicts: tables of single `requests`, the records as a file (`archive`), validity,
    evidence and the like of each trial (`boots`), and anything of single trials (`trials`)."""

    requests: bool = True
    archive: bool = True
    boots: bool = True
    trials: bool = True

    def left_out(self) -> tuple[str, ...]:
        """Said in the report."""
        return tuple(LEFT_OUT[field.name] for field in fields(self) if not getattr(self, field.name))


LEFT_OUT: Final = {
    "requests": "the tables of single requests",
    "archive": "the records themselves as a file",
    "boots": "validity, evidence, memory, boots and records of each trial",
    "trials": "everything of the single trials but their verdicts",
}
CONTENTS: Final = (
    Content(),
    Content(requests=False),
    Content(archive=False),
    Content(requests=False, archive=False),
    Content(requests=False, archive=False, boots=False),
    Content(requests=False, archive=False, boots=False, trials=False),
)
"""From the largest report to the smallest."""


@dataclass(frozen=True)
class Material:
    """What was asked for, worked out once for reports of every size."""

    asked: Asked
    trials: tuple[Measured, ...]
    download: Download | None

    @classmethod
    def of(cls, asked: Asked) -> Material:
        records = {int(record["seq"]): record for source in asked.trials for record in source.records}
        whole = [records[seq] for seq in sorted(records)]
        return cls(asked, tuple(measured(source) for source in asked.trials), archive(asked.name, whole))

    @property
    def alone(self) -> bool:
        """Whether the whole report is of one trial."""
        return len(self.trials) == 1 and self.asked.kind != "campaign"

    def contents(self) -> list[Content]:
        """The sizes that it can have. Single requests are only in the report of a trial itself."""
        return [each for each in CONTENTS if self.alone or not each.requests]


def build(material: Material, content: Content) -> Page:
    """The parts of a report. What was left out is said in it, with where to find it."""
    asked, trials = material.asked, material.trials
    if material.alone:
        sections = _trial(trials[0], "", content)
        banner, title = banner_of(trials[0]), label_of(requested_of(trials[0]))
    else:
        sections = _many(asked, trials, content)
        banner, title = _banner(asked, trials), asked.name
    return Page(
        kind=asked.kind,
        title=title,
        subtitle=f"{asked.kind.capitalize()} {asked.name} on site {asked.site}",
        banner=banner,
        sections=sections,
        data=plotted(asked.kind, asked.name, asked.site, trials if content.trials else []),
        download=material.download if content.archive else None,
        left_out=content.left_out(),
    )


def _trial(trial: Measured, prefix: str, content: Content) -> tuple[Section, ...]:
    sections = [summary_section(trial, prefix), speed_section(trial, prefix), changed_section(trial, prefix)]
    if content.boots:
        sections += [
            validity_section(trial, prefix),
            evidence_section(trial, prefix),
            time_section(trial, prefix),
            memory_section(trial, prefix),
            boots_section(trial, prefix, requests=content.requests),
            records_section(trial, prefix),
        ]
    return (*sections, reproduce_section(trial, prefix))


def _many(asked: Asked, trials: Sequence[Measured], content: Content) -> tuple[Section, ...]:
    sections = [_overview(asked, trials)]
    if content.trials:
        for index, trial in enumerate(trials):
            prefix = f"t{index + 1}-"
            banner = banner_of(trial)
            said = f"{banner.verdict}{' ' + banner.code if banner.code else ''}. {banner.sentence}"
            heading = f"{index + 1}. {label_of(requested_of(trial))}: {banner.verdict}"
            blocks: tuple[Block, ...] = (Text(said, banner.tone, notice=True), Text(banner.why))
            sections.append(Section(f"{prefix}trial", heading, blocks, _trial(trial, prefix, content)))
    command = shlex.join(["./trispark", "report", asked.name, "--site", asked.site])
    sections.append(Section("reproduce", "How to reproduce", (Commands("This report", (command,)),)))
    return tuple(sections)


def _overview(asked: Asked, trials: Sequence[Measured]) -> Section:
    """A row a trial; of a campaign, entries that left no record too."""
    found = iter(enumerate(trials, start=1))
    entries = asked.entries or tuple(
        EntrySource(source.key, source.walk, "ended", "", (source,)) for source in asked.trials
    )
    rows: list[tuple[Cell | str, ...]] = []
    for entry in entries:
        if not entry.trials:
            state = Cell(entry.state, "bad" if entry.state == "failed" else "open")
            rows.append((entry.label, Cell(entry.walk, code=True), state, "", "no record", "", shortened(entry.reason)))
        for source in entry.trials:
            place, trial = next(found)
            banner = banner_of(trial)
            detail = trial.detail
            first = detail["metrics"][0] if detail else None
            shown = (
                "no interval"
                if first is None
                else f"{first['metric']} {effect(first['welch']['ratio'])} ({span(first['welch'])})"
            )
            counts = f"{len(trial.of_arm('baseline'))} + {len(trial.of_arm('candidate'))}"
            name, verdict = f"{place}. {label_of(requested_of(trial))}", Cell(banner.verdict, banner.tone)
            key = Cell(source.key, code=True)
            rows.append((name, key, verdict, banner.code, counts, shown, shortened(banner.why)))
    columns = ("trial", "record", "verdict", "code", "#counted boots", "first primary, 95 % interval", "reason")
    blocks: list[Block] = [table("overview-table", "Trials, in their order", columns, rows)]
    if not rows:
        blocks = [Text("No trial of it was begun.", "open", notice=True)]
    return Section("overview", "Overview", tuple(blocks))


def _banner(asked: Asked, trials: Sequence[Measured]) -> Banner:
    verdicts = [banner_of(trial).verdict for trial in trials]
    counts = [
        f"{verdicts.count(name)} {name}"
        for name in ("KEEP", "REJECT", "INCONCLUSIVE", "NO VERDICT")
        if name in verdicts
    ]
    open_ones = sum(not entry.trials for entry in asked.entries)
    counts += [f"{open_ones} without a boot"] if open_ones else []
    said = (
        "A campaign has no verdict of its own: each trial has one."
        if asked.kind == "campaign"
        else ("A sweep has no verdict of its own: each value has one.")
    )
    tone = TONES.get(verdicts[0], "open") if len(set(verdicts)) == 1 else ""
    return Banner(
        f"{len(verdicts)} trial{'' if len(verdicts) == 1 else 's'}",
        "",
        said,
        ", ".join(counts) or "none was begun",
        tone,
    )

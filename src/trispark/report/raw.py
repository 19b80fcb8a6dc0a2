"""Raw data of a report: every boot, every request, the records with their hashes, and the file that holds them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trispark.benchstats import decode_tps
from trispark.canonical import canonical_json
from trispark.records import record_hash
from trispark.report.measured import BootRow, Measured
from trispark.report.page import Block, Cell, Download, Facts, Section, Table, Text, table
from trispark.report.trial import recomputed
from trispark.report.words import NONE, STATES, number, shortened

Record = Mapping[str, Any]


def boots_section(trial: Measured, prefix: str, *, requests: bool) -> Section:
    """All boots of the trial, those that do not count among them; with `requests` each answer of the counted ones."""
    rows = []
    for boot in trial.boots:
        asked, outcome = boot.record["requested"], boot.record["outcome"]
        counts = Cell("yes", "good") if boot.counted else Cell("no", "muted")
        if trial.record is None:
            counts = Cell("not said yet", "open")
        rows.append((
            Cell(boot.id, code=True), boot.arm, asked["purpose"], counts,
            Cell(outcome["state"], STATES.get(outcome["state"], "bad")),
            Cell(str(boot.record["resolved"]["generation"]), code=True), boot.record["timings"]["started_at"],
            number(boot.record["timings"]["phases"].get("start_to_ready")), shortened(outcome["reason"]),
        ))  # fmt: skip
    columns = ("boot", "arm", "purpose", "counts", "state", "generation", "began", "#ready after s", "reason")
    caption = "Every boot of the trial, in order"
    blocks: list[Block] = [table(f"{prefix}boots-table", caption, columns, rows)] if rows else []
    if not rows:
        blocks.append(Text("No boot of the trial has left a record.", "muted"))
    if requests:
        counted = [boot for boot in trial.boots if boot.counted]
        blocks += [found for index, boot in enumerate(counted) if (found := _requests(boot, f"{prefix}raw-{index}"))]
    return Section(f"{prefix}boots", "Boots and raw data", tuple(blocks))


def _requests(boot: BootRow, id: str) -> Table | None:
    found = boot.record["bench"]["requests"] if boot.record["bench"] else []
    if not found:
        return None
    rows = [
        (
            str(each.get("tag", "")),
            str(each.get("index", place)),
            number(each.get("completion_tokens")),
            number(each.get("ttft_s")),
            number(each.get("total_s")),
            number(_rate(each)),
            Cell(str(each.get("text_sha") or NONE)[:12], code=True),
            Cell(shortened(each["error"]), "bad") if each.get("error") else NONE,
        )
        for place, each in enumerate(found)
    ]
    columns = ("load", "#request", "#tokens", "#first token s", "#total s", "#decode tok/s", "text", "error")
    return table(id, f"{boot.id}, {boot.arm}: {len(rows)} requests", columns, rows, folded=True)


def _rate(request: Mapping[str, Any]) -> float | None:
    try:
        return decode_tps(request)
    except (KeyError, TypeError):
        return None


def records_section(trial: Measured, prefix: str) -> Section:
    """Ids and hashes, and what was checked of them."""
    records = trial.source.records
    if not records:
        return Section(f"{prefix}records", "Records", (Text("There is none.", "muted"),))
    arms = {int(boot.record["seq"]): boot.arm for boot in trial.boots}
    rows = [
        (
            str(record["seq"]),
            record["kind"],
            Cell(str(record["id"]), code=True),
            arms.get(int(record["seq"]), ""),
            Cell(record_hash(record), code=True),
        )
        for record in records
    ]
    facts = Facts((
        ("Chain", Cell("every record has the published shape and is the one that its follower names", "good")),
        ("Verdict", recomputed(trial)),
    ))  # fmt: skip
    caption = "Records that this report is made of; the hash is the sha256 of a record's canonical JSON"
    found = table(f"{prefix}records-table", caption, ("#number", "kind", "id", "arm", "sha256"), rows)
    return Section(f"{prefix}records", "Records", (facts, found))


def archive(name: str, records: Sequence[Record]) -> Download | None:
    """The records, one a line in canonical JSON: the sha256 of a line is the record's hash. None without any."""
    if not records:
        return None
    lines = "".join(f"{canonical_json(dict(record))}\n" for record in records)
    packed = gzip.compress(lines.encode("utf-8"), compresslevel=9, mtime=0)
    return Download(f"{name}.records.jsonl.gz", base64.b64encode(packed).decode("ascii"), len(packed))


def plotted(kind: str, name: str, site: str, trials: Sequence[Measured]) -> str:
    """What the figures show, as JSON: boots with their values, verdicts, hashes."""
    form = {
        "schema_version": 1,
        "kind": kind,
        "id": name,
        "site": site,
        "trials": [
            {
                "id": trial.source.key,
                "outcome": {key: value for key, value in trial.outcome.items() if key != "rules"} or None,
                "rules": trial.outcome.get("rules"),
                "boots": [
                    {"boot_id": boot.id, "arm": boot.arm, "counted": boot.counted, "values": dict(boot.values)}
                    for boot in trial.boots
                ],
                "records": {str(record["id"]): record_hash(record) for record in trial.source.records},
            }
            for trial in trials
        ],
    }
    return json.dumps(form, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

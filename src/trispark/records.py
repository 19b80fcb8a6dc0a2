"""Records of boots and trials: built from typed facts, checked against the published schema, chained by hash.

A record's hash is the sha256 of its canonical JSON, all keys included; `previous` holds the hash of the record before.
Only values that the allowlist calls loggable are recorded, all other variables by name.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trispark.canonical import canonical_json, canonical_sha256
from trispark.errors import TrisparkError
from trispark.logparse import (
    attach_lines,
    draft_shape,
    graph_sizes,
    packed_states,
    server_args,
    total_lookups,
    total_reads,
)
from trispark_node.plain_json import parse_json

# Reading records needs neither the models nor the schema, which take most of a second to import: they are imported
# where a record is made or checked.
if TYPE_CHECKING:
    from jsonschema.protocols import Validator

    from trispark.allowlist import Allowlist
    from trispark.benchstats import BenchSummary
    from trispark.gate_result import GateResult
    from trispark.project import ProjectState
    from trispark.record_model import BootRecord, TrialRecord
    from trispark.resolve import Difference, Resolution
    from trispark.verdict import Verdict

SCHEMA_FILE: Final = Path(__file__).resolve().parents[2] / "schemas" / "record.schema.json"
NEAR_IDS: Final = 3
FIRST_BOOT: Final = "./trispark play stage_a boots the baseline, which leaves the first one"
"""What to do where there are no records; it works as it is written."""
DAMAGED_COPY: Final = "move it away; the nodes hold all records, and the next boot fetches what the controller lacks"
Head = Mapping[str, Any]


def build_boot_record(
    *,
    record_id: str,
    site: str,
    resolution: Resolution,
    allowlist: Allowlist,
    project: ProjectState,
    requested: Mapping[str, Any],
    boot_id: str,
    epoch: int,
    observations: Mapping[str, Mapping[str, Any] | None],
    timings: Mapping[str, Any],
    gates: Sequence[GateResult],
    bench: Mapping[str, Any] | None,
    summary: BenchSummary | None,
    outcome: Mapping[str, Any],
    previous: Head | None,
    identities: Mapping[str, Mapping[str, Any]] | None = None,
    provenance: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The record of one boot, checked.

    requested  keys of record_model.Requested; timings: {"started_at", "ended_at", "phases": {name: seconds}};
    outcome    {"state": valid|invalid|failed, "reason", "good"}
    previous   {"seq", "hash", ...} of the chain's head, or None for the first record
    bench      output of the load client with its `summary`, or None for a boot without measurements.
    identities {node: record_model.RankIdentity as JSON} of the ranks whose bits were hashed
    provenance  images.attestation.Fact of each image that was judged before the boot
    Raises TS-RECORD-SCHEMA.
    """
    ranks = {entry["rank"]: entry for entry in resolution.resolved["ranks"]}
    seen = {rank: observations.get(entry["node"]) or {} for rank, entry in ranks.items()}
    if outcome.get("state") == "valid" and (not gates or not all(gate.ok for gate in gates)):
        raise _schema_error("outcome.state", "valid only when gates were judged and all passed", "valid")
    record = {
        **_heading("boot", record_id, site, project, previous),
        "boot_id": boot_id,
        "epoch": epoch,
        "requested": dict(requested),
        "resolved": resolved_part(allowlist, resolution),
        "observed": {
            "engine": _engine_shape(seen.get(0, {}), resolution),
            "ranks": [
                _observed_rank(allowlist, rank, node, seen[rank], (identities or {}).get(node))
                for rank, node in sorted((rank, entry["node"]) for rank, entry in ranks.items())
            ],
        },
        "timings": dict(timings),
        "gates": [gate.as_dict() for gate in gates],
        "bench": None if bench is None else _bench(bench, summary),
        "outcome": dict(outcome),
        "provenance": [dict(fact) for fact in provenance],
    }
    from trispark.record_model import BootRecord

    return _checked(BootRecord, record)


def resolved_part(allowlist: Allowlist, resolution: Resolution) -> dict[str, Any]:
    """What a record holds of a resolved configuration (record_model.Resolved)."""
    settings, withheld = _split_settings(allowlist, resolution.settings)
    ranks = sorted(resolution.resolved["ranks"], key=lambda entry: int(entry["rank"]))
    return {
        "generation": resolution.id,
        "engine": resolution.resolved["engine"],
        "image": resolution.resolved["image"],
        "settings": settings,
        "settings_withheld": withheld,
        "adapters": dict(resolution.resolved["adapters"]),
        "changed_keys": list(resolution.changed_keys),
        "ranks": [_resolved_rank(allowlist, entry) for entry in ranks],
    }


def build_trial_record(
    *,
    record_id: str,
    site: str,
    project: ProjectState,
    requested: Mapping[str, Any],
    baseline: Resolution,
    candidate: Resolution,
    difference: Difference,
    allowlist: Allowlist,
    boots: Sequence[Mapping[str, Any]],
    verdict: Verdict,
    restored: str | None,
    rules: Mapping[str, Any] | None = None,
    plan: str | None = None,
    confirms: Sequence[Mapping[str, Any]] = (),
    timings: Mapping[str, Any],
    previous: Head | None,
) -> dict[str, Any]:
    """The record of one trial, checked. `boots`: entries of record_model.TrialBoot, in the order in which they ran."""
    changed = {
        name: {"baseline": pair[0], "candidate": pair[1]}
        for name, pair in sorted(difference.settings.items())
        if (variable := allowlist.get(name)) is not None and variable.loggable
    }
    record = {
        **_heading("trial", record_id, site, project, previous),
        "requested": dict(requested),
        "resolved": {
            "baseline": baseline.id,
            "candidate": candidate.id,
            "changed": changed,
            "plan": plan,
            "confirms": [dict(part) for part in confirms],
        },
        "boots": [dict(boot) for boot in boots],
        "timings": dict(timings),
        "outcome": {**verdict.as_dict(), "restored": restored, "rules": None if rules is None else dict(rules)},
    }
    from trispark.record_model import TrialRecord

    return _checked(TrialRecord, record)


def record_hash(record: Mapping[str, Any]) -> str:
    """sha256 (64 hex digits) of the canonical JSON of a whole record."""
    return canonical_sha256(dict(record))


def head_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """{"seq", "id", "hash"}: what a following record refers to."""
    return {"seq": record["seq"], "id": record["id"], "hash": record_hash(record)}


def validate_record(record: Mapping[str, Any]) -> None:
    """Raises TS-RECORD-SCHEMA naming the first place that the published schema does not allow."""
    from jsonschema.exceptions import best_match

    errors = sorted(_validator().iter_errors(dict(record)), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        best = best_match(errors) or errors[0]
        place = ".".join(str(part) for part in best.absolute_path) or "(whole record)"
        raise _schema_error(place, "a record of schemas/record.schema.json", best.message[:200])


def verify_chain(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Check schema, numbering and hashes of records in order; returns the head, None for no record.

    The first record may be any (older ones may have been left out), but one with seq 1 has no previous.
    Raises TS-RECORD-SCHEMA or TS-RECORD-CHAIN naming the record.
    """
    head: dict[str, Any] | None = None
    for record in records:
        where = f"record {record['seq']} ({record['id']})"
        try:
            validate_record(record)
        except TrisparkError as error:
            raise _schema_error(f"{where}: {error.where}", error.expected, error.observed) from None
        previous = record["previous"]
        if head is None:
            if (record["seq"] == 1) != (previous is None):
                raise _chain_error(where, "previous only missing in record 1", str(previous))
            if previous is not None and previous["seq"] != record["seq"] - 1:
                raise _chain_error(where, f"previous seq {record['seq'] - 1}", str(previous["seq"]))
        else:
            if record["seq"] != head["seq"] + 1:
                raise _chain_error(where, f"seq {head['seq'] + 1}", str(record["seq"]))
            expected = {"seq": head["seq"], "hash": head["hash"]}
            if previous != expected:
                raise _chain_error(where, f"previous {canonical_json(expected)}", canonical_json(previous))
        head = head_of(record)
    return head


class RecordCache:
    """The controller's copy of a site's records: one file a record, `<seq>-<id>.json`. The nodes hold the truth."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, record: Mapping[str, Any]) -> bool:
        """Store a record; False when it is there already. Raises TS-RECORD-FORK when another one has its number."""
        validate_record(record)
        seq = int(record["seq"])
        for path in sorted(self.directory.glob(f"{seq:06d}-*.json")):
            known = self._read(path)
            if record_hash(known) == record_hash(record):
                return False
            raise TrisparkError(
                "TS-RECORD-FORK",
                f"two different records have the number {seq}",
                where=str(path),
                expected=record_hash(known),
                observed=record_hash(record),
                remedy="compare the records of the nodes; the cache may be deleted and is filled again",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.path(record)
        temporary = target.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(canonical_json(dict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        return True

    def path(self, record: Mapping[str, Any]) -> Path:
        """The file of a record."""
        return self.directory / f"{int(record['seq']):06d}-{record['id']}.json"

    def list(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All records by number, or the last `limit`."""
        paths = sorted(self.directory.glob("*.json"))
        return [self._read(path) for path in (paths if limit is None else paths[max(len(paths) - limit, 0) :])]

    def show(self, key: str) -> dict[str, Any]:
        """The record with this id, number, or unambiguous beginning of an id. Raises TS-RECORD-UNKNOWN."""
        records = self.list()
        exact = [record for record in records if key in (record["id"], str(record["seq"]))]
        found = exact or [record for record in records if key and str(record["id"]).startswith(key)]
        if len(found) != 1:
            near = [str(record["id"]) for record in found[-NEAR_IDS:]] or _near(key, records)
            raise TrisparkError(
                "TS-RECORD-UNKNOWN",
                "no record has this id" if not found else "several records begin so",
                where=str(self.directory),
                expected="an id or a number of ./trispark records list"
                + (f", near: {', '.join(near)}" if near else ""),
                observed=key,
                remedy="./trispark records list" if records else f"there are no records yet: {FIRST_BOOT}",
            )
        return found[0]

    def head(self) -> dict[str, Any] | None:
        """{"seq", "id", "hash"} of the last record, or None."""
        last = self.list(limit=1)
        return head_of(last[0]) if last else None

    def verify(self) -> dict[str, Any] | None:
        """verify_chain over the whole cache, from record 1 on. Raises TS-RECORD-CHAIN, TS-RECORD-SCHEMA or -READ.

        It finds any change of a record that has a successor; only the nodes can tell that the newest one was changed.
        """
        records = self.list()
        if records and records[0]["seq"] != 1:
            raise _chain_error(str(self.directory), "record 1", f"records from {records[0]['seq']} on")
        return verify_chain(records)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            record = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise TrisparkError(
                "TS-RECORD-READ",
                "a record cannot be read",
                where=str(path),
                expected="JSON",
                observed=str(error),
                remedy=DAMAGED_COPY,
            ) from None
        shape = {"seq": int, "id": str, "kind": str}
        if not isinstance(record, dict) or any(type(record.get(key)) is not wanted for key, wanted in shape.items()):
            raise TrisparkError(
                "TS-RECORD-READ",
                "this is not a record",
                where=str(path),
                expected="seq, id and kind",
                observed=f"other JSON, or other types of these ({type(record).__name__})",
                remedy=DAMAGED_COPY,
            )
        return record


def _near(key: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids most like `key`, the newest first among equals."""
    ids = [str(record["id"]) for record in reversed(records)]
    return difflib.get_close_matches(key, ids, n=NEAR_IDS, cutoff=0.4)


def _heading(kind: str, record_id: str, site: str, project: ProjectState, previous: Head | None) -> dict[str, Any]:
    from trispark.record_model import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "seq": 1 if previous is None else int(previous["seq"]) + 1,
        "id": record_id,
        "site": site,
        "previous": None if previous is None else {"seq": int(previous["seq"]), "hash": str(previous["hash"])},
        "project": project.recorded(),
    }


def _split_settings(allowlist: Allowlist, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    shown = {
        name: value
        for name, value in sorted(settings.items())
        if (variable := allowlist.get(name)) is not None and variable.loggable
    }
    return shown, sorted(set(settings) - set(shown))


def _resolved_rank(allowlist: Allowlist, entry: Mapping[str, Any]) -> dict[str, Any]:
    env, withheld = allowlist.split_env(dict(entry["env"]))
    return {
        "rank": entry["rank"],
        "node": entry["node"],
        "env": env,
        "env_withheld": withheld,
        "command": allowlist.withhold_command(list(entry["command"])),
        "mounts": [dict(mount) for mount in entry["mounts"]],
    }


def _observed_rank(
    allowlist: Allowlist, rank: int, node: str, seen: Mapping[str, Any], identity: Mapping[str, Any] | None
) -> dict[str, Any]:
    if not seen:
        return {"rank": rank, "node": node, "seen": False}
    env, withheld = allowlist.split_env({str(k): str(v) for k, v in (seen.get("env") or {}).items()})
    versions = seen.get("versions") or {}
    kernel = versions.get("kernel")
    release, packages = (kernel.get("release"), kernel.get("packages")) if isinstance(kernel, Mapping) else (kernel, {})
    return {
        "rank": rank,
        "node": node,
        "seen": True,
        "container_id": seen.get("container_id"),
        "image_id": seen.get("image_id"),
        "image_ref": seen.get("image_ref"),
        "image_digests": list(seen.get("image_digests") or []),
        "started_at": seen.get("started_at"),
        "env": env,
        "env_withheld": withheld,
        "command": allowlist.withhold_command([str(argument) for argument in seen.get("command") or []]),
        "mounts": [
            {key: mount.get(key) for key in ("source", "target", "read_only")} for mount in seen.get("mounts") or []
        ],
        "adapters": dict(seen.get("adapters") or {}),
        "versions": {
            "engine": versions.get("engine"),
            "packages": dict(versions.get("packages") or {}),
            "kernel": release,
            "kernel_packages": dict(packages or {}),
        },
        "memory": seen.get("memory"),
        "engram": _engram(str(seen.get("log") or "")),
        "identity": identity,
    }


def _engram(log: str) -> list[dict[str, Any]]:
    """Per layer: packed only when every line says so; rows of the last attach line; counters over the whole log."""
    attached = {line.layer: line for line in attach_lines(log)}
    lookups, reads = total_lookups(log), total_reads(log)
    layers = []
    for layer in sorted(set(attached) | set(lookups)):
        states = [packed for seen, packed in packed_states(log) if seen == layer]
        attach = attached.get(layer)
        layers.append(
            {
                "layer": layer,
                "packed": all(states) if states else None,
                "first_row": attach.first_row if attach else None,
                "end_row": attach.end_row if attach else None,
                "lookups": lookups.get(layer, 0),
                "reads": reads.get(layer, 0),
            }
        )
    return layers


def _engine_shape(head: Mapping[str, Any], resolution: Resolution) -> dict[str, Any]:
    """What the head's log says about the shape; nothing is filled in from what was asked for."""
    log = str(head.get("log") or "")
    arguments = server_args(log) or {}
    shape = draft_shape(log)
    caches = {line.cache_gib for line in attach_lines(log)}

    def number(*names: str) -> Any:
        for name in names:
            value = arguments.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
        return None

    return {
        "tp_size": number("tp_size", "tp"),
        "ep_size": number("ep_size"),
        "block_size": shape.block_size if shape else number("speculative_dspark_block_size"),
        "verify_tokens": shape.verify_tokens if shape else None,
        "graph_batch_sizes": graph_sizes(log),
        "max_running_requests": number("max_running_requests"),
        "max_total_tokens": number("max_total_tokens"),
        "chunked_prefill_size": number("chunked_prefill_size"),
        "context_length": number("context_length"),
        "mem_fraction_static": number("mem_fraction_static"),
        "cache_gib": caches.pop() if len(caches) == 1 else None,
    }


def _bench(bench: Mapping[str, Any], summary: BenchSummary | None) -> dict[str, Any]:
    return {
        "requests": list(bench["requests"]),
        "waves": list(bench["waves"]),
        "server_info": bench.get("server_info"),
        "input": dict(bench["input"]),
        "order": list(bench.get("order") or ()),
        "windows": list(bench.get("windows") or ()),
        "checks": list(bench.get("checks") or ()),
        "steps": list(bench.get("steps") or ()),
        "ended": bench.get("ended"),
        "summary": {} if summary is None else summary.as_dict(),
    }


def _checked(model: type[BootRecord] | type[TrialRecord], record: Mapping[str, Any]) -> dict[str, Any]:
    """The record in its final JSON form. Raises TS-RECORD-SCHEMA."""
    from pydantic import ValidationError

    try:
        result: dict[str, Any] = json.loads(canonical_json(model.model_validate(dict(record)).model_dump(mode="json")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _schema_error(place, first["msg"], repr(first["input"])[:120]) from None
    validate_record(result)
    return result


@cache
def _validator() -> Validator:
    from jsonschema import Draft202012Validator

    try:
        schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrisparkError(
            "TS-RECORD-SCHEMA",
            "the schema of records cannot be read",
            where=str(SCHEMA_FILE),
            expected="a JSON schema",
            observed=str(error),
            remedy="restore it from git",
        ) from None
    return Draft202012Validator(schema)


def _schema_error(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-SCHEMA",
        "the record has a wrong shape",
        where,
        expected,
        observed,
        remedy="use the trispark that made it; a record of this version that is refused is a defect of its maker",
    )


def _chain_error(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-CHAIN",
        "the chain of records is broken",
        where=where,
        expected=expected,
        observed=observed,
        remedy="compare the records of all nodes; one of them was changed or is missing",
    )

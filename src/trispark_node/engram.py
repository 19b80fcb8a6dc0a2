"""Verb `engram`: this rank's packed shards are exactly the checkpoint's rows, or are made so, or are refused."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trispark_node import packing, shard_format, share_bounded
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.layout import SHARED_DIRECTORY_MODE, SHARED_FILE_MODE
from trispark_node.mutation import Mode, Plan, mutate
from trispark_node.node import Node
from trispark_node.packing import Table
from trispark_node.regular_file import open_regular
from trispark_node.shard_format import HEADER_BYTES, ROW_BYTES, Shard

MOUNTINFO = Path("/proc/self/mountinfo")
WHOLE_BELOW_BYTES = 2**30
"""Files of this size and more are compared in samples: reading a table of tens of GB from the checkpoint's network file
system takes longer than a start."""
INSPECT_S = 900.0
"""For looking at the checkpoint and comparing all files of a rank with it: far longer than either takes."""
SAMPLED_ROWS = 256
OK, MISSING, PARTIAL = "ok", "missing", "partial"
WRONG_HEADER, WRONG_SIZE, WRONG_CONTENT = "wrong_header", "wrong_size", "wrong_content"
ERROR_IDS = {
    WRONG_HEADER: "TS-ENGRAM-HEADER",
    WRONG_SIZE: "TS-ENGRAM-SIZE",
    WRONG_CONTENT: "TS-ENGRAM-CONTENT",
    PARTIAL: "TS-ENGRAM-PARTIAL",
    MISSING: "TS-ENGRAM-MISSING",
}
"""By severity: of several states the first one here names the error."""
ACTIONS = {OK: "none", MISSING: "packed", PARTIAL: "packed"}


@dataclass(frozen=True)
class EngramRequest:
    action: str
    checkpoint: Path
    directory: Path
    rank: int
    tp: int
    layers: tuple[int, ...]
    repair: bool

    @classmethod
    def parse(cls, fields: Fields) -> EngramRequest:
        action = fields.text("action")
        tp = fields.integer("tp", low=1, high=1024)
        request = cls(
            action=action,
            checkpoint=Path(fields.absolute_path("checkpoint")),
            directory=Path(fields.absolute_path("directory")),
            rank=fields.integer("rank", high=tp - 1),
            tp=tp,
            layers=fields.integers("layers"),
            repair=fields.boolean("repair", False),
        )
        if action not in ("verify", "ensure") or (action == "verify" and request.repair):
            raise request_error(
                "action has the wrong form",
                where="request.action",
                expected="verify (without repair) or ensure",
                observed=f"{action}, repair {request.repair}",
            )
        if len(set(request.layers)) != len(request.layers):
            raise request_error(
                "a layer occurs twice", where="request.layers", expected="each once", observed=str(request.layers)
            )
        return request


@dataclass(frozen=True)
class Finding:
    """What lies under a shard's name. `observed` says it in words."""

    shard: Shard
    table: Table
    state: str
    observed: str

    def row(self, request: EngramRequest) -> dict[str, Any]:
        action = ACTIONS.get(self.state, "repaired" if request.repair else "none")
        return {
            "file": self.shard.name,
            "layer": self.shard.layer,
            "first_row": self.shard.first_row,
            "end_row": self.shard.end_row,
            "state": self.state,
            "action": action if request.action == "ensure" else "none",
            "bytes": self.shard.size,
            "checked": None if self.state in (MISSING, PARTIAL) else checked(self.shard),
        }


def engram(node: Node, request: EngramRequest, mode: Mode) -> dict[str, Any]:
    """verify: all shards ok, or an error that lists every file. ensure: brings them there. No other name is touched."""
    if request.action == "verify":
        findings = inspect(request)
        if any(finding.state != OK for finding in findings):
            raise _refused(request, findings)
        return {"changed": False, "files": _rows(findings, request)}
    return mutate(node, "engram", mode, lambda: plan_ensure(node, request), area="engram")


def plan_ensure(node: Node, request: EngramRequest) -> Plan:
    findings = inspect(request)
    if not request.repair and any(finding.state not in ACTIONS for finding in findings):
        raise _refused(request, findings)
    files = _rows(findings, request)
    todo = [finding for finding in findings if finding.state != OK]
    if not todo:
        return Plan(None, {"files": files})
    _check_space(request, todo)

    def apply() -> Mapping[str, Any]:
        node.disk.make_directory(request.directory, SHARED_DIRECTORY_MODE)
        for finding in todo:
            _pack(node, request, finding)
        return {}

    return Plan(
        apply,
        {"files": files},
        {"directory": str(request.directory), "files": [finding.shard.name for finding in todo]},
        (
            "".join(f"{finding.shard.name} {finding.state}\n" for finding in todo),
            "".join(f"{finding.shard.name} ok\n" for finding in todo),
        ),
    )


def _rows(findings: list[Finding], request: EngramRequest) -> list[dict[str, Any]]:
    return [finding.row(request) for finding in findings]


def _refused(request: EngramRequest, findings: list[Finding]) -> AgentError:
    states = {finding.state for finding in findings}
    worst = next(state for state in ERROR_IDS if state in states)
    remedy = "run playbooks/shards.yml (./trispark play shards)"
    if worst not in ACTIONS:
        remedy = (
            "find out whose file it is, then ./trispark play shards -e repair=true; "
            "an engine that runs keeps what it has opened: boot again afterwards"
        )
    return AgentError(
        ERROR_IDS[worst],
        f"not every packed shard of rank {request.rank} of {request.tp} is the checkpoint's",
        where=str(request.directory),
        expected="all files ok: " + ", ".join(finding.shard.name for finding in findings),
        observed="; ".join(
            f"{finding.shard.name} {finding.state}: {finding.observed}" for finding in findings if finding.state != OK
        ),
        remedy=remedy,
        extra={"files": _rows(findings, request)},
    )


def inspect(request: EngramRequest) -> list[Finding]:
    """Compare every file with the checkpoint, whole or in samples by its size. Reads only, and with a bound: the
    checkpoint may lie on a network file system whose server is gone."""
    try:
        found = share_bounded.call(lambda: _looked_at(request), INSPECT_S)
    except share_bounded.Late as late:
        raise AgentError(
            "TS-ENGRAM-TIMEOUT",
            "reading the checkpoint has no end",
            where=str(request.checkpoint),
            expected=f"all shards compared with it within {late.seconds:g} s",
            observed="no end; the read was left to itself",
            remedy="see that the checkpoint's file system answers (./trispark play share), then run the verb again",
        ) from late
    return [_finding(request, each) for each in found]


def _looked_at(request: EngramRequest) -> list[dict[str, Any]]:
    """In the child process; what `_finding` takes."""
    tables = packing.find_tables(request.checkpoint, request.layers)
    _refuse_moved_directory(request.directory)
    found = []
    for layer, table in tables.items():
        shard = Shard.of(layer, request.rank, request.tp, table.rows)
        state, observed = _state(request.directory, shard, table)
        found.append({"table": {**asdict(table), "path": str(table.path)}, "state": state, "observed": observed})
    return found


def _finding(request: EngramRequest, found: Mapping[str, Any]) -> Finding:
    table = Table(**{**found["table"], "path": Path(found["table"]["path"])})
    shard = Shard.of(table.layer, request.rank, request.tp, table.rows)
    return Finding(shard, table, found["state"], found["observed"])


def _link_error(path: Path, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-LINK",
        "a shard's place is not what it seems",
        where=str(path),
        expected="a directory and regular files in it, reached without links or mounts in between",
        observed=observed,
        remedy="put the files themselves there, or give the real directory",
    )


def _refuse_moved_directory(directory: Path) -> None:
    """A link would let the agent check one place and the container mount another later."""
    real = Path(os.path.realpath(directory))
    if real != directory:
        raise _link_error(directory, f"a link leads to {real}")
    if directory.exists() and not directory.is_dir():
        raise _link_error(directory, "no directory")


def _state(directory: Path, shard: Shard, table: Table) -> tuple[str, str]:
    """(state, in words) of what lies under a shard's name."""
    path = directory / shard.name
    partial = partial_path(path)
    for candidate in (path, partial):
        _refuse_linked_file(directory, candidate)
    if not path.exists():
        if partial.exists():
            return PARTIAL, f"only {partial.name}, {partial.stat().st_size} bytes"
        return MISSING, "absent"
    return compare(path, shard, table)


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _refuse_linked_file(directory: Path, path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise _link_error(path, f"a link to {path.readlink()}")
    if not stat.S_ISREG(found.st_mode):
        raise _link_error(path, "no regular file")
    if found.st_dev != directory.stat().st_dev or _is_mounted(path):
        raise _link_error(path, "another mount")


def _is_mounted(path: Path) -> bool:
    """A file of the same file system may be bind-mounted over another; only the mount table shows it."""
    target = str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    with MOUNTINFO.open(encoding="utf-8", errors="surrogateescape") as table:
        return any(line.split(" ")[4] == target for line in table)


def compare(path: Path, shard: Shard, table: Table) -> tuple[str, str]:
    """(state, in words) of an existing file: header with its padding, size, then every row, or a sample of them."""
    descriptor = open_regular(path, os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES:
            return WRONG_SIZE, f"{size} bytes, less than its header"
        difference = shard_format.header_difference(shard.header(), os.pread(descriptor, HEADER_BYTES, 0))
        if difference is not None:
            return WRONG_HEADER, difference
        if size != shard.size:
            return WRONG_SIZE, f"{size} bytes, not {shard.size}"
        compare_content = _compare_rows if checked(shard) == "whole" else _compare_sample
        return compare_content(descriptor, shard, table)
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def checked(shard: Shard) -> str:
    """How a file of this shard is compared with the checkpoint: `whole`, every byte, or `sampled`, its header, its size
    and SAMPLED_ROWS rows."""
    return "whole" if shard.size < WHOLE_BELOW_BYTES else "sampled"


def sample(shard: Shard) -> list[int]:
    """Rows of the layer to compare, ascending; always the same ones of a file's name and size."""
    rows = range(shard.first_row, shard.end_row)
    return sorted(random.Random(f"{shard.name} {shard.size}").sample(rows, min(SAMPLED_ROWS, len(rows))))


def _compare_sample(descriptor: int, shard: Shard, table: Table) -> tuple[str, str]:
    chosen = sample(shard)
    with packing.open_rows(table, shard.first_row, shard.end_row) as rows:
        for row in chosen:
            expected = rows.row(row)
            observed = os.pread(descriptor, ROW_BYTES, HEADER_BYTES + (row - shard.first_row) * ROW_BYTES)
            if observed != expected:
                return WRONG_CONTENT, _row_difference(row, expected, observed)
    return OK, f"equal to the checkpoint in its header, its size and {len(chosen)} rows"


def _row_difference(row: int, expected: bytes, observed: bytes) -> str:
    pairs = zip(expected, observed, strict=False)
    column = next((i for i, (a, b) in enumerate(pairs) if a != b), len(observed))
    return f"row {row} differs first at its byte {column}"


def _compare_rows(descriptor: int, shard: Shard, table: Table) -> tuple[str, str]:
    buffer = bytearray()
    offset = HEADER_BYTES
    with packing.open_rows(table, shard.first_row, shard.end_row) as rows:
        for expected in rows.chunks():
            if len(buffer) != len(expected):
                buffer = bytearray(len(expected))
            view = memoryview(buffer)
            filled = 0
            while filled < len(view):
                got = os.preadv(descriptor, [view[filled:]], offset + filled)
                if got == 0:
                    return WRONG_SIZE, f"it ends at byte {offset + filled} while being read"
                filled += got
            if buffer != expected:  # as bytearray: one memcmp
                index = next(i for i, (a, b) in enumerate(zip(buffer, expected, strict=True)) if a != b)
                row, column = divmod(offset - HEADER_BYTES + index, ROW_BYTES)
                return WRONG_CONTENT, f"row {shard.first_row + row} differs first at its byte {column}"
            offset += len(expected)
    return OK, "equal to the checkpoint in every byte"


def _check_space(request: EngramRequest, todo: list[Finding]) -> None:
    """Before the first byte. A leftover .partial is removed first and counts as free; a file to be replaced stays until
    the new one is complete and does not."""
    place = request.directory if request.directory.exists() else request.directory.parent
    facts = os.statvfs(place)
    reclaimed = sum(_allocated(partial_path(request.directory / finding.shard.name)) for finding in todo)
    free = facts.f_bavail * facts.f_frsize + reclaimed
    needed = sum(finding.shard.size for finding in todo)
    if free < needed:
        raise AgentError(
            "TS-ENGRAM-SPACE",
            "the packed shards do not fit",
            where=str(request.directory),
            expected=f"{needed} bytes free for {', '.join(finding.shard.name for finding in todo)}",
            observed=f"{free} bytes free, {needed - free} too few",
            remedy="make room on this file system, or give another directory",
        )


def _allocated(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _pack(node: Node, request: EngramRequest, finding: Finding) -> None:
    """Write `<name>.partial`, sync it, put it in place. Old or new content under the name, never a part."""
    path = request.directory / finding.shard.name
    partial = partial_path(path)
    disk = node.disk
    disk.remove_file(partial)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, SHARED_FILE_MODE)
    try:
        os.fchmod(descriptor, SHARED_FILE_MODE)
        disk.write_all(descriptor, partial, finding.shard.header())
        with packing.open_rows(finding.table, finding.shard.first_row, finding.shard.end_row) as rows:
            for chunk in rows.chunks():
                disk.write_all(descriptor, partial, chunk)
        disk.sync_file(descriptor, partial)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            disk.remove_file(partial)  # it would keep the space from everyone else
        raise
    finally:
        os.close(descriptor)
    disk.rename(partial, path)

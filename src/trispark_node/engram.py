"""Verb `engram`: this rank's packed shards are exactly the checkpoint's rows, or are made so, or are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node import engram_place, engram_tables, native_library, ownership, shard_check, shard_pack, share_bounded
from trispark_node.engram_request import ENSURE, INSPECT, EngramRequest
from trispark_node.engram_tables import Table
from trispark_node.errors import AgentError
from trispark_node.layout import SHARED_DIRECTORY_MODE
from trispark_node.lock import held
from trispark_node.mutation import Mode, Plan, mutate
from trispark_node.node import Node
from trispark_node.shard_check import (
    ALONE,
    DEEP,
    GOOD,
    HOLES,
    MENDED,
    MISSING,
    NO_MANIFEST,
    OTHER_LAYOUT,
    PARTIAL,
    QUICK,
    WRONG_CONTENT,
    WRONG_HEADER,
    WRONG_MANIFEST,
    WRONG_SIZE,
    Judged,
    Work,
)
from trispark_node.shard_format import Shard
from trispark_node.shard_manifest import Origin

INSPECT_S = 900.0
"""For looking at the checkpoint and comparing all files of a rank with it at the quick level: far longer than that
takes."""
ERROR_IDS = {
    OTHER_LAYOUT: "TS-ENGRAM-LAYOUT",
    WRONG_HEADER: "TS-ENGRAM-HEADER",
    WRONG_SIZE: "TS-ENGRAM-SIZE",
    HOLES: "TS-ENGRAM-HOLES",
    WRONG_CONTENT: "TS-ENGRAM-CONTENT",
    WRONG_MANIFEST: "TS-ENGRAM-MANIFEST",
    PARTIAL: "TS-ENGRAM-PARTIAL",
    MISSING: "TS-ENGRAM-MISSING",
    NO_MANIFEST: "TS-ENGRAM-UNPROVEN",
}
"""By severity: of several states the first one here names the error."""
STOP = "./trispark play stop"
NOT_WHAT_RUNS = "an engine that runs keeps what it has opened: boot again afterwards"
ACTIONS = {MISSING: "packed", PARTIAL: "packed", NO_MANIFEST: "adopted"}


@dataclass(frozen=True)
class Finding:
    """What lies under a shard's name."""

    origin: Origin
    judged: Judged

    @property
    def shard(self) -> Shard:
        return self.origin.shard

    @property
    def state(self) -> str:
        return self.judged.state

    @property
    def may_be_served(self) -> bool:
        """Whether an engine that has this file open may read wrong rows. Not where every row was found right."""
        rows_are_right = self.state == WRONG_MANIFEST and self.judged.checked == "whole"
        return self.state not in (*GOOD, *MENDED) and not rows_are_right

    def action(self, repair: bool) -> str:
        """What `ensure` does about it."""
        if self.state in GOOD:
            return "none"
        return ACTIONS.get(self.state, "repaired" if repair else "none")

    def row(self, request: EngramRequest) -> dict[str, Any]:
        return {
            "file": self.shard.name,
            "layer": self.shard.layer,
            "layout": self.origin.layout,
            "first_row": self.shard.first_row,
            "end_row": self.shard.end_row,
            "state": self.state,
            "observed": self.judged.observed,
            "action": self.action(request.repair) if request.action == ENSURE else "none",
            "bytes": self.shard.size,
            "checked": self.judged.checked,
        }


def changes(request: EngramRequest) -> bool:
    """Whether it writes shards; a look at them is anybody's while another command works."""
    return request.action == ENSURE


def engram(
    node: Node, request: EngramRequest, mode: Mode, work: Work = ALONE, begun: Callable[[], None] | None = None
) -> dict[str, Any]:
    """inspect: what is there. verify: all shards good, or an error that lists every file. ensure: brings them there.

    Check mode looks at the quick level alone and says so: `skipped_level`. No other name is touched. `begun` is called
    when whatever must not run beside it is locked out and work begins.
    """
    native_library.loaded()  # a node without it is told so before anything is read
    if mode.check and request.level != QUICK:
        return _quickly(node, request, mode)
    work = replace(work, limit=request.limit_bytes_s)
    if request.action == INSPECT:
        return {"changed": False, **_answer(node, request, inspect(request))}
    if request.action == ENSURE:
        return mutate(node, "engram", mode, lambda: plan_ensure(node, request, work, begun), area="engram")
    if request.level == QUICK:
        return _verified(node, request, inspect(request))
    node.disk.make_directory(node.layout.root)
    with (
        held(node.layout.lock("engram"), node.clock, mode.lock_wait_s, request.title) as note,
        held(node.layout.lock("disk"), node.clock, mode.lock_wait_s, request.title) as note_disk,
    ):
        note()
        note_disk()
        if begun is not None:
            begun()
        return _verified(node, request, look(request, work))


def _quickly(node: Node, request: EngramRequest, mode: Mode) -> dict[str, Any]:
    """Reading whole shards takes hours and locks measurements out, which nobody expects of a check."""
    skipped = {"skipped_level": request.level}
    try:
        return {**engram(node, replace(request, level=QUICK), mode), **skipped}
    except AgentError as error:
        error.extra.update(skipped)
        raise


def outlook(node: Node, request: EngramRequest) -> tuple[int, dict[str, Any]]:
    """(bytes of whole shards that this request works through, the answer when there are none).

    Raises what the request would raise before that work. The library is loaded before the job is detached: the agent's
    file may be replaced while the job runs.
    """
    native_library.loaded()
    findings = inspect(request)
    if request.action == ENSURE:
        plan = _plan(node, request, findings, ALONE, None)
        todo = [finding for finding in findings if finding.state not in GOOD]
        return sum(finding.shard.size for finding in todo), plan.answer()
    # Whether the file or its manifest is wrong is what the deepest level finds out.
    open_question = (WRONG_MANIFEST, NO_MANIFEST) if request.level == DEEP else ()
    answer = _verified(node, request, [finding for finding in findings if finding.state not in open_question])
    times = 2 if request.level == DEEP else 1
    small = [finding.shard.size for finding in findings if finding.judged.checked == "whole" and times == 1]
    return times * sum(finding.shard.size for finding in findings) + sum(small), answer


def names(request: EngramRequest) -> list[str]:
    """The shards' names, which need no checkpoint."""
    return [Shard(layer, request.rank, request.tp, 0, 0, 0).name for layer in request.layers]


def _verified(node: Node, request: EngramRequest, findings: list[Finding]) -> dict[str, Any]:
    if request.running_mount is not None:
        engram_place.refuse_other_mount(node, request.running_mount, request.directory)
    if any(finding.state not in GOOD for finding in findings):
        raise _refused(node, request, findings)
    return {"changed": False, **_answer(node, request, findings)}


def plan_ensure(
    node: Node, request: EngramRequest, work: Work = ALONE, begun: Callable[[], None] | None = None
) -> Plan:
    return _plan(node, request, inspect(request), work, begun)


def _plan(
    node: Node, request: EngramRequest, findings: list[Finding], work: Work, begun: Callable[[], None] | None
) -> Plan:
    if not request.repair and any(finding.state not in (*GOOD, *MENDED) for finding in findings):
        raise _refused(node, request, findings)
    answer = _answer(node, request, findings)
    todo = [finding for finding in findings if finding.state not in GOOD]
    if not todo:
        return Plan(None, answer)
    _check_space(request, [finding for finding in todo if finding.state != NO_MANIFEST])

    def apply() -> Mapping[str, Any]:
        with held(node.layout.lock("disk"), node.clock, 0, request.title) as note:
            note()
            if begun is not None:
                begun()
            node.disk.make_directory(request.directory, SHARED_DIRECTORY_MODE)
            for finding in todo:
                write = shard_pack.adopt if finding.state == NO_MANIFEST else shard_pack.pack
                write(node.disk, request.directory, finding.origin, work)
        return {}

    return Plan(
        apply,
        answer,
        {"directory": str(request.directory), "files": [finding.shard.name for finding in todo]},
        (
            "".join(f"{finding.shard.name} {finding.state}\n" for finding in todo),
            "".join(f"{finding.shard.name} ok\n" for finding in todo),
        ),
    )


def _answer(node: Node, request: EngramRequest, findings: list[Finding]) -> dict[str, Any]:
    """`serving`: engines that run with a file open that is wrong, or that this call replaces."""
    own = [finding.shard.name for finding in findings]
    wrong = any(finding.may_be_served for finding in findings)
    return {
        "serving": engram_place.serving(node, request.directory) if wrong else [],
        "files": [finding.row(request) for finding in findings],
        "others": engram_place.others(request.directory, own, node.clock),
        "network": engram_place.network(node.procfs, request.checkpoint, _network_bytes(request, findings)),
    }


def _network_bytes(request: EngramRequest, findings: list[Finding]) -> int:
    """How much of the checkpoint this call reads or has read."""
    every = request.level == DEEP
    return sum(
        finding.shard.size
        for finding in findings
        if every or finding.judged.checked == "whole" or finding.action(request.repair) in ("packed", "repaired")
    )


def _refused(node: Node, request: EngramRequest, findings: list[Finding]) -> AgentError:
    states = {finding.state for finding in findings}
    worst = next(state for state in ERROR_IDS if state in states)
    answer = _answer(node, request, findings)
    return AgentError(
        ERROR_IDS[worst],
        f"not every packed shard of rank {request.rank} of {request.tp} is the checkpoint's",
        where=str(request.directory),
        expected="all files ok: " + ", ".join(finding.shard.name for finding in findings),
        observed="; ".join(
            f"{finding.shard.name} {finding.state}: {finding.judged.observed}"
            for finding in findings
            if finding.state not in GOOD
        ),
        remedy=_remedy(worst, findings, answer["serving"]),
        extra=answer,
    )


def _remedy(worst: str, findings: list[Finding], serving: list[str]) -> str:
    """What to do, first of all about an engine that has opened a wrong file."""
    if worst in MENDED:
        return "run playbooks/shards.yml (./trispark engram pack)"
    first = "find out whose file it is"
    if worst == WRONG_MANIFEST:
        first = "./trispark engram verify --level deep tells which of the two is wrong, file or manifest"
        if all(each.judged.checked == "whole" for each in findings if each.state == WRONG_MANIFEST):
            first = "every row of the file was compared and is right, as with ./trispark engram verify --level deep: "
            first += "the manifest is wrong"
    stop = f"{STOP}: {', '.join(serving)} runs and may serve wrong rows of what it has opened; " if serving else ""
    return f"{stop}{first}, then ./trispark engram pack --repair; {NOT_WHAT_RUNS}"


def inspect(request: EngramRequest) -> list[Finding]:
    """Judge every file at the quick level. Reads only, and with a bound: the checkpoint may lie on a network file
    system whose server is gone."""
    try:
        found = share_bounded.call(lambda: [_as_json(each) for each in _looked_at(request, QUICK, ALONE)], INSPECT_S)
    except share_bounded.Late as late:
        raise AgentError(
            "TS-ENGRAM-TIMEOUT",
            "reading the checkpoint has no end",
            where=str(request.checkpoint),
            expected=f"all shards compared with it within {late.seconds:g} s",
            observed="no end; the read was left to itself",
            remedy="see that the checkpoint's file system answers (./trispark play share), then run the verb again",
        ) from late
    return [_of_json(each) for each in found]


def look(request: EngramRequest, work: Work) -> list[Finding]:
    """The same at the request's level, in this process and without a bound of its own."""
    return _looked_at(request, request.level, work)


def _looked_at(request: EngramRequest, level: str, work: Work) -> list[Finding]:
    tables = engram_tables.find_tables(request.checkpoint, request.layers)
    config = ownership.read_config(request.checkpoint)
    shard_check.refuse_moved_directory(request.directory)
    found = []
    for layer, table in tables.items():
        ends = ownership.boundaries(request.layout, config.values, layer, table.rows, request.tp)
        shard = Shard.of(layer, request.rank, ends)
        origin = Origin(shard, table, request.layout, config.sha256, request.revision)
        found.append(Finding(origin, shard_check.judge(request.directory, origin, config.values, level, work)))
    return found


def _as_json(finding: Finding) -> dict[str, Any]:
    """For the pipe from the bounded child."""
    origin, judged = finding.origin, finding.judged
    table = {**vars(origin.table), "path": str(origin.table.path)}
    return {
        "origin": {**vars(origin), "shard": vars(origin.shard), "table": table},
        "judged": vars(judged),
    }


def _of_json(found: Mapping[str, Any]) -> Finding:
    table = Table(**{**found["origin"]["table"], "path": Path(found["origin"]["table"]["path"])})
    origin = Origin(**{**found["origin"], "shard": Shard(**found["origin"]["shard"]), "table": table})
    return Finding(origin, Judged(**found["judged"]))


def _check_space(request: EngramRequest, todo: list[Finding]) -> None:
    """Before the first byte. A leftover .partial is removed first and counts as free; a file to be replaced stays until
    the new one is complete and does not."""
    if not todo:
        return
    place = request.directory
    while not place.exists():
        place = place.parent
    facts = os.statvfs(place)
    if facts.f_blocks == 0:  # a file system of no declared size, such as ramfs, has no room to be counted
        return
    partials = [shard_check.partial_path(request.directory / finding.shard.name) for finding in todo]
    free = facts.f_bavail * facts.f_frsize + sum(map(_allocated, partials))
    needed = sum(finding.shard.size for finding in todo) + request.reserve_bytes
    if free < needed:
        raise AgentError(
            "TS-ENGRAM-SPACE",
            "the packed shards do not fit",
            where=str(request.directory),
            expected=f"{needed} bytes free: {needed - request.reserve_bytes} for "
            f"{', '.join(finding.shard.name for finding in todo)}, {request.reserve_bytes} in reserve",
            observed=f"{free} bytes free, {needed - free} too few",
            remedy="make room on this file system, or give another directory",
        )


def _allocated(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0

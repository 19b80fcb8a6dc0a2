"""`trispark-node VERB`: request as JSON on standard input, one JSON object on standard output.

For a person: `trispark-node VERB --option ...` at a terminal or with options prints lines (trispark_node.by_hand).

Exit status: 0 done, 1 refused or failed, 2 not understood. Nothing else is ever written to standard output, except the
help for a person (`--help`, `-h`, or no verb).
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trispark_node import NODE_ROOT, PROTOCOL, VERSION, by_hand, fleet_lock
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.fleet_owner import Owner
from trispark_node.layout import Layout
from trispark_node.mutation import Mode, Plan, mutate
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.unexpected import internal_error, os_error

Run = Callable[[Node, Fields], dict[str, Any]]


def _later(place: str) -> Callable[..., Any]:
    """The function `module:name` of this package, imported when it is called first: most of an agent's call would else
    be the import of other verbs' modules."""
    module, _, name = place.partition(":")

    def call(*arguments: Any) -> Any:
        found: Callable[..., Any] = operator.attrgetter(name)(importlib.import_module(f"trispark_node.{module}"))
        return found(*arguments)

    return call


@dataclass(frozen=True)
class Verb:
    """`changes`: it changes the node, and asks for the fleet lock first."""

    run: Run
    changes: bool


def _reading(run: Callable[[Node], dict[str, Any]]) -> Verb:
    """A verb without parameters that changes nothing."""
    return _asking(lambda _fields: None, lambda node, _request: run(node))


def _asking(parse: Callable[[Fields], Any], run: Callable[[Node, Any], dict[str, Any]]) -> Verb:
    """A verb with parameters that changes nothing; a command that holds the fleet lock is heard of by it."""

    def verb(node: Node, fields: Fields) -> dict[str, Any]:
        request = parse(fields)
        check = fields.boolean("check", False)  # to reading verbs it makes no other difference
        owner = Owner.of_request(fields)
        fields.done()
        with fleet_lock.renewed(node, None if check else owner):
            return run(node, request)

    return Verb(verb, changes=False)


def _changing(
    name: str, parse: Callable[[Fields], Any], plan: Callable[[Node, Any], Plan], area: str = "state"
) -> Verb:
    return _with_mode(
        name, parse, lambda node, request, mode: mutate(node, name, mode, lambda: plan(node, request), area)
    )


def _with_mode(
    name: str,
    parse: Callable[[Fields], Any],
    run: Callable[[Node, Any, Mode], dict[str, Any]],
    is_change: Callable[[Any], bool] = lambda _request: True,
) -> Verb:
    """A changing verb that arranges its own locking on the node. Where `is_change` says no, this request only reads."""

    def locked(node: Node, request: Any, mode: Mode) -> dict[str, Any]:
        if mode.check:
            return run(node, request, mode)
        if not is_change(request):
            with fleet_lock.renewed(node, mode.owner):
                return run(node, request, mode)
        with fleet_lock.admitted(node, name, mode.owner, _later("fleet_lock_verbs:lease_of_site")(node)) as notes:
            return {**run(node, request, mode), **notes}

    return _of_the_lock(parse, locked)


def _of_the_lock(parse: Callable[[Fields], Any], run: Callable[[Node, Any, Mode], dict[str, Any]]) -> Verb:
    """A changing verb that looks at the fleet lock itself."""

    def verb(node: Node, fields: Fields) -> dict[str, Any]:
        request = parse(fields)
        mode = Mode.parse(fields)
        fields.done()
        return run(node, request, mode)

    return Verb(verb, changes=True)


def _nothing(_fields: Fields) -> None:
    """Of a verb without parameters."""


def _of_the_node(place: str) -> Callable[[Node, None], Plan]:
    """A plan that asks for nothing but the node."""
    return lambda node, _request: _later(place)(node)


HELP = {
    "version": "version of the agent and of its protocol",
    "steps": "several verbs in one call, one after the other, until one fails",
    "host": "memory, disks, addresses and Docker of this node",
    "status": "generation, engine, canary, packed state, drift, records, and what is damaged",
    "image-ensure": "have an image by its digest: from its registry, or from an archive on this node",
    "engram": "inspect, verify or pack this rank's Engram shards, and wait for it",
    "engram-job": "begin, watch or end work on whole shards, which takes minutes to hours",
    "share": "export, mount, compare or remove the checkpoint's share",
    "site-set": "what the node must know of its site without a controller",
    "stage": "store a generation",
    "generation-show": "a stored generation",
    "provenance-store": "keep what proves where an image comes from",
    "activate": "make a stored generation the current one",
    "fence": "raise the epoch, so that no older boot starts",
    "can-start": "whether a generation could be started",
    "start": "start the engine of the current generation",
    "stop": "stop the engine, keep its log, remove its container",
    "rollback": "fence, stop the engine, make the last good generation current; starts nothing",
    "rollback-clear": "forget a rollback that is complete or moot",
    "recover": "end what an interrupted agent had begun",
    "prove-stopped": "whether anything of an engine is left: processes, ports, memory",
    "survey": "containers of someone else, and what was taken over",
    "adopt": "take over a container of someone else: describe it, keep the way back, stop it",
    "adopt-back": "start again, as it was, what was taken over",
    "wait": "wait until the engine is ready or has ended",
    "observe": "what runs in the engine's container",
    "parity": "hashes of image, adapters, sources and libraries, to compare nodes by",
    "request": "one HTTP request to the engine",
    "request-batch": "HTTP requests to the engine, all at once",
    "oneshot": "run the load client once",
    "good-mark": "mark a generation as good",
    "baseline-show": "the promoted baseline, nothing while the shipped one holds",
    "baseline-set": "promote a baseline with its record, or go back to the shipped one",
    "lock-take": "take the fleet lock for one command",
    "lock-release": "give the fleet lock back, or free it from whoever has it",
    "lock-show": "who holds the fleet lock, and until when",
    "record-append": "append a record to the chain",
    "record-list": "the newest records",
    "record-show": "one record",
    "record-head": "the newest record's number, id and hash",
    "prune": "remove old generations, logs of old boots, and images that nothing needs",
    "at-boot": "what the boot unit runs once after each start of the node",
    "boot-log": "the kept log of a boot",
    "save-log": "keep the engine's log without stopping it",
    "backup": "this node's state in one piece, with its secrets",
    "restore": "give this node the state of a backup of its own",
    "support": "what a report on a fault needs of this node, without secrets",
    "uninstall": "remove what trispark keeps on this node; records stay unless they are to go, too",
}
"""One line for each verb."""

VERBS: dict[str, Verb] = {
    "version": _reading(lambda _node: {"version": VERSION, "protocol": PROTOCOL}),
    # Each of its steps asks for the locks that its own verb needs.
    "steps": Verb(lambda node, fields: _later("steps:steps")(node, fields, _run_of), changes=True),
    "host": _asking(_later("host:HostRequest.parse"), _later("host:host")),
    "status": _asking(_later("status:StatusRequest.parse"), _later("status:status")),
    "image-ensure": _changing(
        "image-ensure", _later("images:ImageRequest.parse"), _later("images:plan_image"), "image"
    ),
    "engram": _with_mode(
        "engram", _later("engram_request:EngramRequest.parse"), _later("engram:engram"), _later("engram:changes")
    ),
    "engram-job": _with_mode(
        "engram-job",
        _later("engram_job:JobRequest.parse"),
        _later("engram_job:engram_job"),
        _later("engram_job:changes"),
    ),
    "share": _with_mode("share", _later("share:ShareRequest.parse"), _later("share:share"), _later("share:changes")),
    "site-set": _changing("site-set", _later("site_facts:SiteFacts.parse"), _later("site_facts:plan_set")),
    "stage": _changing("stage", _later("generations:StageRequest.parse"), _later("generations:plan_stage")),
    "generation-show": _asking(_later("generations:GenerationRequest.parse"), _later("generations:show")),
    "provenance-store": _changing(
        "provenance-store", _later("provenance:StoreRequest.parse"), _later("provenance:plan_store")
    ),
    "activate": _changing(
        "activate", _later("generations:GenerationRequest.parse"), _later("generations:plan_activate")
    ),
    "fence": _changing("fence", _later("epoch:FenceRequest.parse"), _later("epoch:plan_fence")),
    "can-start": _asking(_later("generations:GenerationRequest.parse"), _later("engine:can_start")),
    "start": _changing("start", _later("engine:StartRequest.parse"), _later("engine:plan_start")),
    "stop": _changing("stop", _later("engine:StopRequest.parse"), _later("engine:plan_stop")),
    "rollback": _changing("rollback", _later("rollback:RollbackRequest.parse"), _later("rollback:plan_rollback")),
    "rollback-clear": _changing("rollback-clear", _later("rollback:ClearRequest.parse"), _later("rollback:plan_clear")),
    "recover": _changing("recover", _nothing, _of_the_node("recover:plan_recover")),
    "prove-stopped": _asking(_later("stopped:ProveRequest.parse"), _later("stopped:verb")),
    "survey": _asking(_later("adopt:SurveyRequest.parse"), _later("adopt:survey")),
    "adopt": _changing("adopt", _later("adopt:AdoptRequest.parse"), _later("adopt:plan_adopt")),
    "adopt-back": _changing("adopt-back", _later("adopt:BackRequest.parse"), _later("adopt:plan_back")),
    "wait": _asking(_later("watching:WaitRequest.parse"), _later("watching:wait")),
    "observe": _asking(_later("observe:ObserveRequest.parse"), _later("observe:observe")),
    "parity": _asking(_later("parity:ParityRequest.parse"), _later("parity:parity")),
    "request": _asking(
        _later("http_request:HttpRequest.parse"),
        lambda node, request: _later("http_request:perform")(node.http, request),
    ),
    "request-batch": _asking(
        _later("http_request:BatchRequest.parse"),
        lambda node, batch: _later("http_request:perform_batch")(node.http, batch),
    ),
    "oneshot": _with_mode("oneshot", _later("oneshot:OneshotRequest.parse"), _later("oneshot:oneshot")),
    "good-mark": _changing("good-mark", _later("good:GoodMark.parse"), _later("good:plan_mark")),
    "baseline-show": _reading(_later("baseline:show")),
    "baseline-set": _changing("baseline-set", _later("baseline:SetRequest.parse"), _later("baseline:plan_set")),
    "lock-take": _of_the_lock(_later("fleet_lock_verbs:TakeRequest.parse"), _later("fleet_lock_verbs:lock_take")),
    "lock-release": _of_the_lock(
        _later("fleet_lock_verbs:ReleaseRequest.parse"), _later("fleet_lock_verbs:lock_release")
    ),
    "lock-show": _reading(fleet_lock.show),
    "record-append": _changing("record-append", _later("records:AppendRequest.parse"), _later("records:plan_append")),
    "record-list": _asking(_later("records:ListRequest.parse"), _later("records:record_list")),
    "record-show": _asking(_later("records:ShowRequest.parse"), _later("records:record_show")),
    "record-head": _reading(_later("records:record_head")),
    "prune": _with_mode("prune", _later("prune:PruneRequest.parse"), _later("prune:prune")),
    "at-boot": _with_mode("at-boot", _nothing, lambda node, _request, mode: _later("at_boot:at_boot")(node, mode)),
    "boot-log": _asking(_later("boot_log:BootLogRequest.parse"), _later("boot_log:boot_log")),
    "save-log": _changing("save-log", _nothing, _of_the_node("logs:plan_save_log")),
    "backup": _asking(_later("backup:BackupRequest.parse"), _later("backup:backup")),
    "restore": _with_mode("restore", _later("restore:RestoreRequest.parse"), _later("restore:restore")),
    "support": _asking(_later("support:SupportRequest.parse"), _later("support:support")),
    "uninstall": _with_mode("uninstall", _later("uninstall:UninstallRequest.parse"), _later("uninstall:uninstall")),
}


def help_text() -> str:
    width = max(map(len, HELP))
    verbs = "\n".join(f"  {verb:{width}}  {line}" for verb, line in HELP.items())
    return (
        f"trispark-node {VERSION}: what one node of trispark does, called by the playbooks.\n\n"
        "usage: trispark-node VERB\n"
        "       as root; the request is one JSON object on standard input, the answer one on standard output\n\n"
        f"verbs:\n{verbs}\n\n"
        "by hand:\n"
        "  trispark-node status\n"
        "  trispark-node rollback [--to ID] [--epoch N] [--deadline SECONDS]\n"
        "  trispark-node recover\n"
        "  trispark-node stop [--deadline SECONDS]\n"
        "  trispark-node start --boot NAME --epoch N\n"
        "  --json: the answer as JSON; without terminal and options the request too\n"
        "  --lines: the answer as lines without a terminal, too\n\n"
        "Exit status: 0 done, 1 refused or failed, 2 not understood.\n"
    )


def answer(node: Node, verb: str, text: bytes | str) -> tuple[dict[str, Any], int]:
    """The answer to one request and the exit status. Raises nothing but what ends the process anyway."""
    try:
        return {"ok": True, **_dispatch(node, verb, text)}, 0
    except AgentError as error:
        return {"ok": False, "error": error.fields(), **error.extra}, error.status
    except OSError as error:
        return {"ok": False, "error": os_error(verb, error).fields()}, 1
    except Exception as error:
        return {"ok": False, "error": internal_error(node, verb, error).fields()}, 1


def _run_of(verb: str) -> Run:
    if verb not in VERBS:
        raise AgentError(
            "TS-AGENT-VERB",
            "there is no such verb",
            where="trispark-node",
            expected=", ".join(VERBS),
            observed=verb or "none",
            remedy="call one of them, with the request as JSON on standard input (trispark-node --help explains them)",
            status=2,
        )
    return VERBS[verb].run


def _dispatch(node: Node, verb: str, text: bytes | str) -> dict[str, Any]:
    run = _run_of(verb)
    try:
        values = parse_json(text) if text.strip() else {}
    except ValueError as error:
        raise request_error(
            "standard input is no JSON", where="request", expected="one JSON object", observed=str(error)
        ) from None
    if not isinstance(values, dict):
        raise request_error(
            "standard input is no object", where="request", expected="one JSON object", observed=type(values).__name__
        )
    fields = Fields(values, "request")
    protocol = fields.integer("protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise AgentError(
            "TS-AGENT-PROTOCOL",
            "controller and agent are of different versions",
            where=f"agent {VERSION}",
            expected=f"protocol {PROTOCOL}",
            observed=f"protocol {protocol}",
            remedy="install the agent that belongs to the controller: ./trispark play install (lab: ./trispark lab up)",
            status=2,
        )
    return run(node, fields)


def main(argv: Sequence[str], stdin: IO[str] | None = None, stdout: IO[str] | None = None) -> int:
    """`argv` without the program's name. TRISPARK_ROOT replaces the root directory in tests."""
    out = stdout if stdout is not None else sys.stdout
    if not argv or {"-h", "--help"} & set(argv):
        print(help_text(), end="", file=out, flush=True)
        return 0 if argv else 2
    os.umask(0o077)
    node = Node(Layout(Path(os.environ.get("TRISPARK_ROOT", NODE_ROOT))))
    source = stdin if stdin is not None else sys.stdin
    words = [word for word in argv[1:] if word not in ("--json", "--lines")]
    by_a_person = bool(words) or "--lines" in argv or (source.isatty() and argv[0] in by_hand.VERBS)
    if by_a_person:
        result, code = _answer_by_hand(node, argv[0], words)
    else:
        # Bytes are read as they are: what is no UTF-8 is no request.
        result, code = answer(node, argv[0], "" if source.isatty() else getattr(source, "buffer", source).read())
    if by_a_person and "--json" not in argv:
        for line in by_hand.lines(argv[0], result):
            print(line, file=out, flush=True)
    else:
        print(_one_line(result, out), file=out, flush=True)
    return code


def _answer_by_hand(node: Node, verb: str, words: Sequence[str]) -> tuple[dict[str, Any], int]:
    try:
        request = by_hand.request(verb, words)
    except AgentError as error:
        return {"ok": False, "error": error.fields()}, error.status
    return answer(node, verb, json.dumps(request))


def _one_line(result: dict[str, Any], out: IO[str]) -> str:
    """JSON that `out` can take: a file's name may hold bytes that are no text."""
    text = json.dumps(result, ensure_ascii=False)
    try:
        text.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(result)
    return text

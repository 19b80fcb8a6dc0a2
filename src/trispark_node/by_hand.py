"""What a person types on the node's shell: `trispark-node rollback --to ID`, `status`, `recover`, `stop`.

Options take the place of the JSON request, and the answer is lines. Without options and with a request on standard
input (as a controller calls it) nothing here is used. `--lines` asks for the same without a terminal: so the boot unit
calls `at-boot`, whose answer is read in the node's log.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trispark_node.errors import error_line, request_error

VERBS = ("status", "rollback", "recover", "stop", "start", "at-boot")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise request_error(
            "the command line was not understood", where=self.prog, expected=self.format_usage(), observed=message
        )


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"trispark-node {verb}", add_help=False, allow_abbrev=False)
    if verb == "rollback":
        parser.add_argument("--to", metavar="ID|good")
        parser.add_argument("--epoch", type=int, metavar="N")
    if verb in ("rollback", "stop"):
        parser.add_argument("--deadline", type=float, dest="deadline_s", metavar="SECONDS")
    if verb == "start":
        parser.add_argument("--boot", required=True, dest="boot_id", metavar="NAME")
        parser.add_argument("--epoch", required=True, type=int, metavar="N")
    return parser


def request(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """The request that the words of a command line mean. Raises TS-AGENT-REQUEST."""
    if verb not in VERBS:
        raise request_error(
            "this verb takes its request on standard input",
            where=f"trispark-node {verb}",
            expected=f"options with {', '.join(VERBS)} alone",
            observed=" ".join(words),
        )
    found = vars(_parser(verb).parse_args(list(words)))
    return {name: value for name, value in found.items() if value is not None}


def lines(verb: str, answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer for a person."""
    if not answer.get("ok"):
        yield error_line(answer["error"])
        if answer.get("repointed"):
            yield "nevertheless: the target is current and what could be stopped is stopped"
        if verb == "at-boot" and "recovered" in answer:
            yield from _at_boot(answer)
        return
    if verb == "rollback":
        yield from _rollback(answer)
    elif verb == "recover":
        yield from _recover(answer)
    elif verb == "status":
        yield from _status(answer)
    elif verb == "at-boot":
        yield from _at_boot(answer)
    elif verb == "stop":
        killed = " (it had to be killed)" if answer.get("killed") else ""
        yield f"stopped in {answer['seconds']} s{killed}" if answer["changed"] else "no engine of ours was there"
    else:
        yield f"started: boot {answer['boot_id']}, generation {answer['generation']}, epoch {answer['epoch']}"


def _rollback(answer: Mapping[str, Any]) -> Iterator[str]:
    seconds = answer["seconds"].get("repointed")
    did = f"stopped and repointed in {seconds} s" if answer["changed"] else "this node was there already"
    yield f"{did}: current is {answer['generation']} (before: {answer['previous'] or 'none'}), epoch {answer['epoch']}"
    yield "nothing was started: three ranks serve together or not at all"
    same = f"trispark-node rollback --to {answer['generation']} --epoch {answer['epoch']}"
    yield f"do: ./trispark rollback on the controller; without one, on each other node: {same}"
    yield f"    then, on the workers and last on the head: trispark-node start --boot NAME --epoch {answer['epoch']}"


def _recover(answer: Mapping[str, Any]) -> Iterator[str]:
    if not answer["recovered"]:
        yield "nothing was begun and not ended"
    for each in answer["recovered"]:
        why = f" ({each['why']})" if each["why"] else ""
        yield f"{each['verb']} of {each['time']}: {each['outcome']}{why}"


def _at_boot(answer: Mapping[str, Any]) -> Iterator[str]:
    """A part that failed has said nothing of what it is about."""
    if answer["recovered"]:
        yield from _recover(answer)
    exits = answer.get("exit_codes", {})
    for boot in answer.get("stopped", ()):
        killed = " (it had to be killed)" if answer.get("killed") else ""
        yield f"stopped: the engine of boot {boot}, whose epoch no longer holds{killed}; its log is kept"
    for boot in answer.get("removed", ()):
        status = exits.get(boot)
        ended = f"had ended (exit status {status}); its log is kept" if status is not None else "never ran"
        yield f"removed: the engine of boot {boot}, which {ended}"
    left_alone = answer.get("left_alone")
    for boot in left_alone or ():
        yield f"left alone: the engine of boot {boot} runs"
    if not answer["changed"] and left_alone == []:
        yield "no engine of ours was there"
    for problem in answer.get("problems", ()):
        yield problem
    proof = answer.get("proof", {"problems": (), "unchecked": ()})
    for problem in proof["problems"]:
        yield error_line(problem)
    for word in proof["unchecked"]:
        yield f"not checked: {word}"


def _status(answer: Mapping[str, Any]) -> Iterator[str]:
    engine = answer.get("engine")
    runs = "no engine"
    if engine:
        runs = (
            f"{engine['state']}, boot {engine['boot_id']}, generation {engine['generation']}, epoch {engine['epoch']}"
        )
    yield f"current {answer['current'] or 'none'}; epoch {answer['epoch']}; {runs}"
    good = [mark["generation"] for mark in answer["good"]]
    yield f"last good {good[-1] if good else 'none'}; stored: {', '.join(answer['generations']) or 'none'}"
    pending = answer.get("rollback")
    if pending:
        missing = f", missing: {', '.join(pending['missing'])}" if pending["missing"] else ""
        yield f"rollback to {pending['target']} since {pending['since']} is not complete{missing}"
    for generation, wrong in answer["damaged"].items():
        yield f"damaged: {generation}: {wrong}"
    for problem in answer["problems"]:
        yield f"damaged: {problem}"
    for name in answer["foreign"]:
        yield f"not ours, in our place: {name}"
    for entry in answer["pending"]:
        yield f"begun and not ended: {entry['verb']} of {entry['time']}; do: trispark-node recover"

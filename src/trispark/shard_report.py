"""What the nodes said of their shards, as lines for a person and as the object that a run publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

GOOD = ("ok", "adopted")
PUBLISHED = ("files", "others", "network", "serving", "skipped_level")
BOOT_AGAIN = "boot again (./trispark play stage_a): an engine that runs keeps the file that it has opened"
STOP_IT = "runs and may serve wrong rows of what it has opened; ./trispark play stop stops it"


def size(count: int) -> str:
    """`33.79 GB`, `512 B`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def shard_lines(answer: Mapping[str, Any], node: str, check: bool = False) -> list[str]:
    """One line a shard, and one for each thing beside them that a person should know. `answer`: of the agent's verb
    `engram`."""
    lines = [_file_line(file, node, check) for file in answer["files"]]
    lines += [_other_line(other, node) for other in answer.get("others") or ()]
    network = answer.get("network")
    if network is not None and network["reads_bytes"]:
        lines.append(
            f"{node} the checkpoint is read over the network: {network['fstype']} from {network['source']}, "
            f"{size(network['reads_bytes'])} for these shards"
        )
    if skipped := answer.get("skipped_level"):
        lines.append(f"{node} check mode: level {skipped} was not run, the files were looked at at the quick level")
    if serving := ", ".join(answer.get("serving") or ()):
        replaced = any(file["action"] == "repaired" for file in answer["files"]) and not check
        lines.append(f"{node} {BOOT_AGAIN}: {serving}" if replaced else f"{node} {serving} {STOP_IT}")
    return lines


def _file_line(file: Mapping[str, Any], node: str, check: bool) -> str:
    action = str(file["action"])
    done = f"would be {action}" if check and action != "none" else action
    line = f"{node} {file['file']}: rows [{file['first_row']},{file['end_row']}) {file['state']}"
    return line if action == "none" else f"{line}, {done}"


def _other_line(other: Mapping[str, Any], node: str) -> str:
    return (
        f"{node} {other['file']}: {other['kind']} of none of this rank's shards, {size(other['bytes'])}, "
        f"{other['age_days']:g} days old; it stays"
    )


def report(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`lines` for a person, `published` for a program, by node. `results`: of the task; empty where it did not come to
    it. A refusal has the states of the files, too."""
    answers = {node: _answer(result) for node, result in results.items()}
    return {
        "lines": [line for node, answer in answers.items() for line in _inspection(node, answer)],
        "published": {
            "shards": {
                node: None if answer is None else {key: answer.get(key) for key in PUBLISHED}
                for node, answer in answers.items()
            }
        },
    }


def _answer(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    answer = result.get("answer")
    return answer if isinstance(answer, Mapping) and "files" in answer else None


def _inspection(node: str, answer: Mapping[str, Any] | None) -> Iterator[str]:
    if answer is None:
        yield f"{node} said nothing of its shards"
        return
    lines = shard_lines(answer, node)
    for file, line in zip(answer["files"], lines, strict=False):
        if file["state"] in GOOD:
            yield f"{line}, {size(file['bytes'])}, {file['layout']} layout, {file['checked']}"
        else:
            yield f"{line}: {file['observed']}"
    yield from lines[len(answer["files"]) :]

"""What pruning never removes, and why: whatever an engine runs from, or a way back leads to.

Nothing here is guessed: what cannot be read could hold the only way back, so pruning ends with that error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark_node import baseline, generations, good, records
from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, identity, own
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.records import Stored
from trispark_node.regular_file import read_bounded

GOOD_ONES = 2
"""The last good generation, and the one before it that `rollback --to previous` leads to."""
_MAX_BYTES = 2**20


def reasons(node: Node, chain: list[Stored]) -> dict[str, str]:
    """{generation: why it stays}, the most important reason first. Raises TS-AGENT-DAMAGED, TS-RECORD-CHAIN."""
    found: dict[str, str] = {}

    def add(generation: Any, why: str) -> None:
        if isinstance(generation, str) and GENERATION_ID.fullmatch(generation):
            found.setdefault(generation, why)

    add(generations.current(node), "current")
    for role in (ROLE_ENGINE, ROLE_BENCH):
        for container in own(node.docker, role):
            who = identity(container)
            add(who.generation if who else None, f"container {container.name}")
    add(_rollback_target(node), "target of a rollback")
    for generation in _last_good(node):
        add(generation, "good")
    for generation in _baselines(node, chain):
        add(generation, "baseline")
    for entry in node.journal.read().pending():
        for value in entry.detail.values():
            add(value, f"pending {entry.verb}")
    return found


def _last_good(node: Node) -> list[str]:
    marks = good.read(node)
    if marks.damaged_lines:
        raise _damaged(str(node.layout.good), f"lines {', '.join(map(str, marks.damaged_lines))} are no marks")
    newest_first = dict.fromkeys(mark.generation for mark in reversed(marks.marks))
    return list(newest_first)[:GOOD_ONES]


def _rollback_target(node: Node) -> Any:
    path = node.layout.rollback
    try:
        value = parse_json(read_bounded(path, _MAX_BYTES))
        if not isinstance(value, dict) or not isinstance(value.get("target"), str):
            raise ValueError("no target")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(str(path), str(error)) from error
    return value["target"]


def _baselines(node: Node, chain: list[Stored]) -> list[str]:
    """The promoted baseline by the record that justifies it, both arms of it; and what the newest valid boot of the
    plain baseline ran, which is the shipped one's generation where none was promoted."""
    found: list[str] = []
    promoted = baseline.read(node)
    if promoted is not None:
        record = next((stored.record for stored in chain if stored.id == promoted.record), {})
        found += [str(_inner(record, "resolved").get(arm)) for arm in ("candidate", "baseline")]
    for stored in reversed(chain):
        requested = _inner(stored.record, "requested")
        plain = requested.get("arm") == "baseline" and requested.get("purpose") != "trial"
        if plain and _inner(stored.record, "outcome").get("state") == "valid":
            found.append(str(_inner(stored.record, "resolved").get("generation")))
            break
    return found


def _inner(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def ran(chain: list[Stored]) -> dict[str, int]:
    """{generation: number of the newest record of a boot of it}."""
    return {str(_inner(stored.record, "resolved").get("generation")): stored.seq for stored in chain}


def recorded_boots(chain: list[Stored]) -> list[str]:
    """Boot ids, newest first."""
    found = [stored.record.get("boot_id") for stored in reversed(chain)]
    return [boot for boot in found if isinstance(boot, str)]


def chain_of(node: Node) -> list[Stored]:
    return list(records.chain(node))


def _damaged(where: str, observed: str) -> AgentError:
    return AgentError(
        "TS-AGENT-DAMAGED",
        "what protects a way back cannot be read, so nothing is removed",
        where=where,
        expected="a file as the agent wrote it",
        observed=observed,
        remedy="repair or move it away (trispark-node status names what is damaged), then prune again",
    )

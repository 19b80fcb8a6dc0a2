"""Failures with which a playbook itself ends, where no module fails: one line each, as a module's own reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trispark.errors import TrisparkError


def unconfigured(site_name: str) -> TrisparkError:
    """A site whose files were not filled in."""
    return TrisparkError(
        "TS-SITE-UNCONFIGURED",
        f"site {site_name} is not configured",
        where=f"inventory/{site_name}/group_vars/all/site.yml",
        expected="site_configured: true",
        observed="not set",
        remedy="fill in the site's files, then set it",
    )


def load_failed(answer: Mapping[str, Any], node: str) -> TrisparkError:
    """The load client ended with an error; `answer` is that of the agent's verb `oneshot`."""
    said = [str(line) for line in answer.get("log_tail") or ()]
    return TrisparkError(
        "TS-BENCH-RUN",
        "the load client failed",
        where=node,
        expected="exit 0",
        observed=f"exit {answer.get('exit_code')}, {said[-1] if said else 'no output'}",
        remedy="read the engine's kept log",
    )


def not_recorded(lacking: Sequence[str], boot_id: str) -> TrisparkError:
    """Nodes that did not get the record of a boot."""
    return TrisparkError(
        "TS-RECORD-APPEND",
        f"the record of {boot_id} is not on every node",
        where=", ".join(lacking),
        expected="on all nodes",
        observed="missing there",
        remedy="bring the node back, the next boot gives it what it lacks",
    )


def not_promoted(lacking: Sequence[str]) -> TrisparkError:
    """Nodes that did not get the promoted baseline."""
    return TrisparkError(
        "TS-PROMOTE-NODE",
        "the baseline is not written on every node",
        where=", ".join(lacking),
        expected="on all nodes",
        observed="missing there",
        remedy="bring the node back, then run the same again",
    )


def uninstall_lines(planned: Mapping[str, Any], confirmed: bool) -> list[str]:
    """What the agent's verb `uninstall` would remove on one node, or is about to; `planned` is the task's result."""
    answer = planned.get("answer")
    if not isinstance(answer, Mapping):
        return ["no agent on this node: nothing that it could remove"]
    verb = "goes" if confirmed else "would go"
    lines = [f"{verb}: {', '.join([*answer['remove'], *answer['containers']]) or 'nothing'}, and the agent"]
    if answer["keep"]:
        lines.append(f"stays: {', '.join(answer['keep'])} (-e records=remove removes them too)")
    if answer["foreign"]:
        lines.append(f"stays: {', '.join(answer['foreign'])}, which is none of ours")
    lines.append("stays: packed shards, the checkpoint, images")
    if not confirmed:
        lines.append("nothing was changed; -e confirm=true removes it")
    return lines

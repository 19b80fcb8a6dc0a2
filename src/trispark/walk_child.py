"""The child runs of a walk: playbooks of this repository through ansible-runner, on the same site with the same
options."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.reporting import node_answers, node_states
from trispark.run_events import error_lines
from trispark.runner import RunResult, run_playbook
from trispark.site import Site
from trispark.walk import ROLLBACK, BootRequest, ChildEnd, Statuses, WalkInterrupted
from trispark.walk_plan import WalkPlan

_FLAGS: Final = {
    "private_key_file": "--private-key",
    "remote_user": "--user",
    "timeout": "--timeout",
    "forks": "--forks",
    "ssh_common_args": "--ssh-common-args",
    "ssh_extra_args": "--ssh-extra-args",
    "become_user": "--become-user",
    "become_method": "--become-method",
    "become_password_file": "--become-password-file",
    "connection_password_file": "--connection-password-file",
}
_LISTS: Final = {
    "vault_ids": "--vault-id",
    "vault_password_files": "--vault-password-file",
    "extra_vars": "--extra-vars",
}
_PROMPTS: Final = {
    "ask_pass": "--ask-pass",
    "become_ask_pass": "--ask-become-pass",
    "ask_vault_pass": "--ask-vault-pass",
}


def child_arguments(options: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> list[str]:
    """The options of the ansible-playbook above that its child runs need too, as words of a command line.

    `options` as ansible-core has parsed them; those that equal `defaults` are left out. A password that a person types
    cannot be handed on: TS-WALK-PROMPT.
    """
    for name, flag in _PROMPTS.items():
        if options.get(name):
            raise TrisparkError(
                "TS-WALK-PROMPT",
                "a stage runs further playbooks, which cannot ask for a password",
                where=flag,
                expected="a password file, or an agent",
                observed=flag,
                remedy="use --become-password-file, --connection-password-file or --vault-password-file",
            )
    words: list[str] = []
    for name, flag in _FLAGS.items():
        value = options.get(name)
        if value is not None and value != (defaults or {}).get(name):
            words += [flag, str(value)]
    for name, flag in _LISTS.items():
        for value in options.get(name) or ():
            words += [flag, str(value)]
    return words


STATUS_S: Final = 30.0
"""How long a node may take for its state: longer than for a person, since one that is called down is waited for."""
AROUND_S: Final = 3600.0
"""For the share, the shards, staging, gates, kept logs and the record of one boot."""


class SystemClock:
    """Real time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Playbooks:
    """The children of one walk. `arguments` and `deadline_s`: what `child_arguments` and `child_deadline_s` gave."""

    root: Path
    plan: WalkPlan
    arguments: Sequence[str]
    deadline_s: float

    def boot(self, request: BootRequest) -> ChildEnd:
        if request.purpose == ROLLBACK:
            return child_end(self._run("rollback", {"rollback_to": request.generation}))
        return child_end(
            self._run(
                "boot",
                {
                    "boot_arm": request.arm,
                    "boot_purpose": request.purpose,
                    "boot_stage": self.plan.stage,
                    "boot_trial": self.plan.walk,
                    "boot_slot": str(request.slot),
                    "boot_generation": request.generation,
                    "boot_bench": "true" if request.measure else "false",
                    "boot_check": "true" if request.check else "false",
                    "feature": self.plan.feature,
                    "value": self._value(request),
                },
            )
        )

    def _value(self, request: BootRequest) -> str:
        """A baseline of a sweep is the same for every value, but it is resolved with one."""
        return request.value or self.plan.trials[0].value or ""

    def statuses(self) -> Statuses:
        return node_statuses(self._run("status", {"status_deadline_s": str(STATUS_S)}))

    def _run(self, name: str, extra: Mapping[str, Any]) -> RunResult:
        return run_playbook(
            self.root,
            name,
            site=self.plan.site,
            extra=extra,
            arguments=self.arguments,
            deadline_s=self.deadline_s,
        )


def child_deadline_s(site: Site) -> float:
    """When a child run is given up: three stops (head, workers, after a failure), the start and the measurement in
    full, and what is around them. Each step has a bound of its own; this one ends what none of them saw."""
    return 3 * site.stop_deadline_s + site.start_deadline_s + site.bench.deadline_s + AROUND_S


def child_end(result: RunResult) -> ChildEnd:
    """A finished run as the walk sees it."""
    lines = error_lines(result.failures)
    if not result.ok and not lines:
        lines = [f"TS-PLAY-FAILED: {result.playbook} ended with {result.rc}"]
    return ChildEnd(result.ok, result.status == "interrupted", tuple(lines), result.seconds)


def node_statuses(result: RunResult) -> dict[str, Mapping[str, Any] | None]:
    """{node: answer}, None for one that could not be reached, from a run of status.yml.

    Raises WalkInterrupted when a signal ended it, TS-WALK-STATUS when it says nothing of the nodes or an agent
    refused: that is no proof that they are down.
    """
    if result.status == "interrupted":
        raise WalkInterrupted("status")
    states = node_states(result.published)
    refused = [f"{node}: {state['error']}" for node, state in states.items() if "error" in state]
    if refused or not states:
        raise TrisparkError(
            "TS-WALK-STATUS",
            "a look at the nodes failed, so it is not known which of them serve",
            where="playbooks/status.yml",
            expected="of each node its state, or that it cannot be reached",
            observed="; ".join(refused or child_end(result).lines[:2]) or "nothing",
            remedy="mend what the line names and resume the trial; playbooks/rollback.yml goes back to what was good",
        )
    return node_answers(result.published)

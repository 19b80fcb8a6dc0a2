"""The verbs of ``./trispark lab``: what this machine needs before its playbooks, and the lab's state, also where no
Docker Engine answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trispark.cli import exit_codes, verb
from trispark.cli.sites import LAB
from trispark.cli.verb import JsonOption
from trispark.errors import TrisparkError
from trispark.host import LocalMachine, Machine, alone, ensure_disk, ensure_docker, state_directory
from trispark.lab.share_mode import ShareMode, declare_share

if TYPE_CHECKING:
    from trispark.lab.engine_api import EngineApi

DOCKER_DISK_BYTES = 6_000_000_000
REPO_DISK_BYTES = 2_000_000_000

WITH_ENGINE = ("openssh-client", "mmdebstrap")
"""Installed in one call of apt with the engine, where there is none; the preparation of the lab wants them next."""

LAB_PLAYBOOKS = frozenset({"lab_up", "lab_down"})
LAB_WAIT_S = 300
"""How long `lab up`, `lab down` and `demo` wait for another one of this checkout."""

Say = Callable[[str], None]


@contextmanager
def lab_alone(repo: Path, say: Say, machine: Machine | None = None) -> Iterator[None]:
    """One verb at a time makes or removes the lab of a checkout. Raises TS-LAB-BUSY when it has to wait too long.

    A playbook that is started by hand is kept off by its lease (``trispark.lab.lease``).
    """
    lock = state_directory(repo) / "lab.lock"
    doing = "lab up, lab down or demo"
    with alone(lock, error_id="TS-LAB-BUSY", doing=doing, wait_s=LAB_WAIT_S, say=say, machine=machine):
        yield


def prepare_machine(repo: Path, say: Say, machine: Machine | None = None) -> None:
    """Disk, Docker Engine, and what the lab is made of: everything that `lab up`, `demo` and the tests need."""
    machine = machine or LocalMachine()
    ensure_disk(Path("/var/lib/docker"), DOCKER_DISK_BYTES, machine)
    ensure_disk(repo, REPO_DISK_BYTES, machine)
    ensure_docker(repo, say, machine, also=WITH_ENGINE)
    from trispark.lab.prepare import prepare

    prepare(repo, say)


def lab_state(repo: Path) -> dict[str, Any]:
    """The lab as its status module sees it, with ``docker`` telling whether an engine answers.

    Nothing is installed or started for this question: where no engine answers there is no lab.
    """
    from trispark.lab.status import lab_status

    client = _engine_or_none()
    if client is None:
        return {"docker": False, "state": "down", "nodes": {}}
    return {"docker": True, **lab_status(client, repo)}


def lab_is_down(repo: Path) -> bool:
    """Whether no node of the lab runs; :func:`lab_state` asks each node as well, which takes longer."""
    from trispark.lab.status import no_node_runs

    client = _engine_or_none()
    return client is None or no_node_runs(client, repo)


def require_lab(repo: Path, *, any_version: bool) -> None:
    """TS-LAB-DOWN for a verb that needs the lab's nodes, TS-LAB-VERSION for one that changes them."""
    if lab_is_down(repo):
        raise TrisparkError(
            "TS-LAB-DOWN",
            "the lab is not up",
            where="this machine",
            expected="the lab's three nodes",
            observed="none of them runs",
            remedy="./trispark lab up",
        )
    if not any_version:
        require_lab_version(repo)


def _engine_or_none() -> EngineApi | None:
    """None where no engine answers; an engine that refuses this user is an error."""
    from trispark.lab.engine_api import connect

    try:
        return connect()
    except TrisparkError as error:
        if error.id != "TS-LAB-ENGINE" or "permission denied" in error.observed.lower():
            raise
        return None


def require_lab_version(repo: Path) -> None:
    """TS-LAB-VERSION before a verb works on a lab that another version made; silent where no Docker Engine answers."""
    from trispark.lab.status import require_version

    client = connect_or_none()
    if client is not None:
        require_version(client, repo)


def connect_or_none() -> EngineApi | None:
    """This machine's Docker Engine; None where none answers: the verb itself says what it misses."""
    from trispark.lab.engine_api import connect

    try:
        return connect()
    except TrisparkError:
        return None


def lab_lines(state: dict[str, Any]) -> list[str]:
    """The lab's state for a person."""
    from trispark.lab.status import version_error

    lines = [f"lab: {state['state']}" + ("" if state["docker"] else " (no Docker Engine answers)")]
    for name, node in state["nodes"].items():
        engine = f"Docker {node['engine']}" if node["engine"] else "no engine answers"
        lines.append(f"{name}  rank {node['rank']}  {node['state']}  {engine}  ssh {node['ssh']}")
    if state.get("version") not in (None, state.get("expected_version")):
        lines.append(str(version_error(state["version"])))
    lines += [f"not ours, in the lab's place: {name}" for name in state.get("foreign", ())]
    return lines


def lab_up(
    share: Annotated[
        ShareMode | None,
        typer.Option(help="How the workers see the checkpoint: a copy each, or the head's. Kept until changed."),
    ] = None,
) -> None:
    """Make the lab, or bring it to its declared state; a second time changes nothing."""
    terminal = verb.begin_lab()
    with lab_alone(verb.REPO, terminal.say):
        if share is not None:
            declare_share(verb.REPO, share)
        prepare_machine(verb.REPO, terminal.say)
        result = verb.player(LAB, terminal).play("lab_up")
    if result.ok:
        terminal.say(f"the lab is up{'' if result.changed else ' (nothing to change)'}; {result.seconds:.1f} s")
    raise typer.Exit(exit_codes.of_run(result))


def lab_down() -> None:
    """Remove the lab and everything it made in Docker; the cache stays."""
    terminal = verb.begin_lab()
    if not lab_state(verb.REPO)["docker"]:
        terminal.say("no Docker Engine answers: there is no lab")
        return
    with lab_alone(verb.REPO, terminal.say):
        result = verb.player(LAB, terminal).play("lab_down")
    if result.ok:
        terminal.say(f"the lab is gone{'' if result.changed else ' (there was none)'}; {result.seconds:.1f} s")
    raise typer.Exit(exit_codes.of_run(result))


def lab_status(as_json: JsonOption = False) -> None:
    """The lab's containers, as Docker shows them."""
    terminal = verb.begin_lab()
    state = lab_state(verb.REPO)
    for line in lab_lines(state):
        terminal.say(line)
    if as_json:
        terminal.json({"site": LAB, **state})


class ShellCommand(TyperCommand):
    """`lab shell`, whose usage shows the command that may follow."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def lab_shell(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="spark0, spark1 or spark2.")],
) -> None:
    """A shell on a node as user trispark (sudo for root), or a command after --: words, or one text for its shell."""
    from trispark.lab.status import shell_command

    verb.begin_lab()
    argv = shell_command(node, verb.REPO, context.args)
    if LocalMachine().which(argv[0]) is None:
        raise TrisparkError(
            "TS-LAB-DOWN",
            "there is no ssh client, so no lab",
            where="PATH",
            expected=f"the program {argv[0]}",
            observed="no such program",
            remedy="./trispark lab up",
        )
    os.execvp(argv[0], argv)

"""The verb ``./trispark rollback``: the playbook of that name, in the words of an incident."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.lab import require_lab
from trispark.cli.play import result_json
from trispark.cli.sites import LAB
from trispark.cli.verb import JsonOption, SiteOption


def rollback(
    to: Annotated[
        str, typer.Option("--to", metavar="ID|good|baseline|previous", help="Without it the last good generation.")
    ] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and do nothing.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Incident: stop and repoint every node that answers, then boot what was good, with gates and canary.

    With a node down it ends DEGRADED (status 4), naming it, and is completed when the node is back.
    """
    terminal, name = verb.begin(site, changing=not plan)
    played = verb.player(name, terminal)
    if name == LAB:
        require_lab(played.repo, any_version=False)
    extra: dict[str, Any] = {"rollback_to": to} if to else {}
    result = played.play("rollback", extra, check=plan)
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))

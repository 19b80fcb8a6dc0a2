"""Verbs `rollback` and `recover`: the playbooks of those names, in the words of an incident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from trispark.cli import exit_codes
from trispark.cli.lab import require_lab
from trispark.cli.play import Player, result_json
from trispark.cli.sites import LAB
from trispark.cli.terminal import Terminal

Begin = Callable[..., tuple[Terminal, str]]


def add_rollback(app: typer.Typer, begin: Begin, player: Callable[[str, Terminal], Player]) -> None:
    """Add the verb to the command line. `begin` names the site, `player` plays on it."""

    @app.command()
    def rollback(
        to: Annotated[
            str, typer.Option("--to", metavar="ID|good|baseline|previous", help="Without it the last good generation.")
        ] = "",
        plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and do nothing.")] = False,
        site: Annotated[
            str | None,
            typer.Option("--site", envvar="TRISPARK_SITE", help="A directory of inventory/; the lab by default."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    ) -> None:
        """Incident: stop and repoint every node that answers, then boot what was good, with gates and canary.

        With a node down it ends DEGRADED (status 4), naming it, and is completed when the node is back.
        """
        terminal, name = begin(site, changing=not plan)
        played = player(name, terminal)
        if name == LAB:
            require_lab(played.repo, any_version=False)
        extra: dict[str, Any] = {"rollback_to": to} if to else {}
        result = played.play("rollback", extra, check=plan)
        if as_json:
            terminal.json(result_json(result, name))
        raise typer.Exit(exit_codes.of_run(result))

    @app.command()
    def recover(
        site: Annotated[
            str | None,
            typer.Option("--site", envvar="TRISPARK_SITE", help="A directory of inventory/; the lab by default."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    ) -> None:
        """End what a controller or an agent that died has left, then bring back what was good; as play recover."""
        terminal, name = begin(site, changing=True)
        played = player(name, terminal)
        if name == LAB:
            require_lab(played.repo, any_version=False)
        result = played.play("recover")
        if as_json:
            terminal.json(result_json(result, name))
        raise typer.Exit(exit_codes.of_run(result))

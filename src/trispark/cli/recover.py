"""The verb ``./trispark recover``: the playbook of that name."""

from __future__ import annotations

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.lab import require_lab
from trispark.cli.play import result_json
from trispark.cli.sites import LAB
from trispark.cli.verb import JsonOption, SiteOption


def recover(
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """End what a controller or an agent that died has left, then bring back what was good; as play recover."""
    terminal, name = verb.begin(site, changing=True)
    played = verb.player(name, terminal)
    if name == LAB:
        require_lab(played.repo, any_version=False)
    result = played.play("recover")
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))

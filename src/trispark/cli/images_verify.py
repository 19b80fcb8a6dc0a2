"""The verb ``./trispark images verify``: the chain from the site's image to what each rank has loaded."""

from __future__ import annotations

from typing import Any

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.lab import require_lab
from trispark.cli.sites import LAB
from trispark.cli.verb import JsonOption, SiteOption

PLAYBOOK = "images_verify"


def images_verify(
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare image, engine sources, adapters and loaded libraries of all ranks, by hash; changes nothing.

    Status 0: equal, and an image of the site; 1: a rank is odd, it is named with the files and both hashes, or
    it has an image that the site does not name; 4: a node does not answer.
    """
    terminal, name = verb.begin(site, changing=False)
    player = verb.player(name, terminal)
    if name == LAB:
        require_lab(player.repo, any_version=True)
    result = player.play(PLAYBOOK)
    found: dict[str, Any] = result.published.get("images") or {}
    if as_json:
        terminal.json({**found, "site": name, "status": result.status})
    if not result.ok:
        raise typer.Exit(exit_codes.of_run(result))
    if result.unreachable or found.get("unreachable"):
        raise typer.Exit(exit_codes.UNREACHABLE)
    raise typer.Exit(exit_codes.OK if found.get("equal") and found.get("of_site") else exit_codes.FAILED)

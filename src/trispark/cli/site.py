"""The verbs of ``./trispark site``."""

from __future__ import annotations

from typing import Annotated

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.sites import known_sites, require_known
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption


def site_init(name: Annotated[str, typer.Argument(help="Name of the new directory of inventory/.")]) -> None:
    """Write the files of a new site, with comments, to be filled in; never over something that is there."""
    from trispark.site_files import write_site

    terminal = Terminal()
    terminal.say(f"site: {name}")
    for path in write_site(verb.REPO, name):
        terminal.say(f"written: {path.relative_to(verb.REPO)}")
    terminal.say(f"fill them in, then: ./trispark site check {name}")


def site_check(
    name: Annotated[str | None, typer.Argument(help="A directory of inventory/; all of them without it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check all of a site's files offline, one line for each problem."""
    from trispark.site_check import check_site

    if name is not None:
        require_known(verb.REPO, name)
    terminal = Terminal()
    reports = [check_site(verb.REPO, each) for each in ([name] if name is not None else known_sites(verb.REPO))]
    for report in reports:
        terminal.say(report.headline())
        for problem in report.problems:
            terminal.say(str(problem))
    if as_json:
        terminal.json({"sites": [report.as_dict() for report in reports]})
    raise typer.Exit(exit_codes.REFUSED if any(report.problems for report in reports) else exit_codes.OK)

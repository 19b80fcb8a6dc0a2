"""``./trispark images build``: builds images of the lab and says the digest of their content."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trispark.cli import exit_codes
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption

REPO = Path(__file__).resolve().parents[3]


def images_build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Images of the lab; all of them without one.")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Run every step of the Dockerfiles again, beside what the lab uses.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build images of the lab with this machine's Docker Engine and say the digest that their content has.

    The digest is the same wherever and whenever they are built: times, owners' names, order and compression are fixed.
    With a lab that runs it is compared with the registry's; status 1 when one differs.
    """
    from trispark.lab.engine_api import connect
    from trispark.lab.rebuild import rebuild

    terminal = Terminal()
    built = rebuild(REPO, connect(), tuple(names or ()), terminal.say, cached=not no_cache)
    for each in built:
        terminal.say(f"{each.name}  {each.digest}{each.compared}")
    if as_json:
        terminal.json({"images": [each.as_dict() for each in built]})
    raise typer.Exit(exit_codes.FAILED if any(each.differs for each in built) else exit_codes.OK)

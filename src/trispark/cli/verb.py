"""What verbs share: the checkout, options, and the line on the site with which each begins.

Used as ``verb.REPO``, ``verb.begin(...)``, ``verb.player(...)``, so that there is one of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trispark.cli.play import Player
from trispark.cli.sites import LAB, choose_site
from trispark.cli.terminal import Terminal

REPO = Path(__file__).resolve().parents[3]

SiteOption = Annotated[
    str | None,
    typer.Option(
        "--site",
        envvar="TRISPARK_SITE",
        help="A directory of inventory/. Without it the lab; but with a fleet configured beside the lab, a verb that "
        "changes something is refused.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
ExtraOption = Annotated[list[str] | None, typer.Option("--extra-vars", "-e", metavar="NAME=VALUE")]


def begin(named: str | None, *, changing: bool, offline: bool = False) -> tuple[Terminal, str]:
    """The terminal and the site, which has been said. Raises as ``choose_site`` does."""
    terminal = Terminal()
    choice = choose_site(REPO, named, changing=changing, offline=offline)
    terminal.say(choice.line)
    return terminal, choice.name


def begin_lab() -> Terminal:
    """Of a verb that is of the lab, whatever sites there are."""
    terminal = Terminal()
    terminal.say(f"site: {LAB}")
    return terminal


def player(site: str, terminal: Terminal) -> Player:
    """Plays playbooks of this checkout on the site."""
    return Player(REPO, site, terminal)

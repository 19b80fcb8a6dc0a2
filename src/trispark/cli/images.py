"""The verbs of ``./trispark images``: each is in a module of its own beside this one."""

from __future__ import annotations

import typer

images_app = typer.Typer(help="Images: locks, builds, and what runs on each rank.", no_args_is_help=True)


@images_app.callback()
def _group() -> None:
    pass

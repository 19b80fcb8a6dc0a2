"""The verbs of ``./trispark images``: each is in a module of its own beside this one."""

from __future__ import annotations

import typer

from trispark.cli.images_context import images_context, images_lint
from trispark.cli.images_lock import images_lock

images_app = typer.Typer(help="Images: locks, builds, and what runs on each rank.", no_args_is_help=True)


@images_app.callback()
def _group() -> None:
    pass


images_app.command("lock")(images_lock)
images_app.command("context")(images_context)
images_app.command("lint")(images_lint)

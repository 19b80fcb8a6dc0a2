"""``./trispark images push``: a built image is judged by its context, described, and brought to a site's registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trispark.cli import exit_codes
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption
from trispark.errors import TrisparkError

REPO = Path(__file__).resolve().parents[3]


def images_push(
    name: Annotated[str, typer.Argument(help="An image of Dockerfiles/images.yml.")],
    context: Annotated[
        Path, typer.Option("--context", metavar="DIR", help="The folder of images context that it was built from.")
    ],
    archive: Annotated[Path, typer.Option("--archive", metavar="FILE", help="The OCI archive that the builder wrote.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REPOSITORY", help="HOST[:PORT]/PATH to push to; without it nothing is sent."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge an archive by the context that it was built from, leave its description for attest, and push it.

    Every part is hashed first. What the registry has is not sent again, so the same command goes on after a failure.
    """
    from functools import partial

    from trispark.images.declaration import load_declaration
    from trispark.images.push import Request, push
    from trispark.images.registry import Registry
    from trispark.images.registry_address import place_of
    from trispark.images.registry_login import login_of

    terminal = Terminal()
    terminal.say("images: no site, no node")
    declaration = load_declaration(REPO)
    known = [each for each, image in declaration.images.items() if image.made_by == "context"]
    if name not in known:
        raise TrisparkError(
            "TS-IMAGES-NAME",
            "there is no such image to push",
            where="images push",
            expected=", ".join(known),
            observed=name[:80],
            remedy="name one of these",
        )
    request = Request(name, context, archive, None if to is None else place_of(to))
    made = push(
        REPO,
        declaration,
        request,
        terminal.say,
        lambda place: Registry(place.address, login=partial(login_of, place.address)),
    )
    setting = "site_engine_image" if declaration.images[name].serves is not None else "site_bench_image"
    terminal.say(f"{name}: {made.digest}, image id {made.image_id}")
    for layer in made.unread:
        terminal.say(f"{layer} is compressed by zstd: images attest will refuse it")
    if made.tag:
        terminal.say(f"{made.repository} has it; for the site:")
        terminal.say(f"  {setting}: {made.repository}@{made.digest}")
    else:
        terminal.say("not pushed; a site without a registry brings the archive to its nodes (docs/images.md), as")
        terminal.say(f"  {setting}: 127.0.0.1:PORT/{name}@{made.digest}")
    terminal.say(f"{made.description}: its description; keep the archive until ./trispark images attest {name}")
    if as_json:
        terminal.json(made.as_dict())
    raise typer.Exit(exit_codes.OK)

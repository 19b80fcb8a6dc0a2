"""``./trispark images context`` and ``lint``: what an image is built from, and the rules for Dockerfiles."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trispark import __version__
from trispark.cli import exit_codes
from trispark.cli.sites import require_known
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption

REPO = Path(__file__).resolve().parents[3]


class Architecture(StrEnum):
    """As OCI images name it."""

    amd64 = "amd64"
    arm64 = "arm64"


def images_context(
    name: Annotated[str, typer.Argument(help="An image of Dockerfiles/images.yml.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that is not there yet, or is empty.")],
    architecture: Annotated[Architecture, typer.Option("--arch")] = Architecture.arm64,
    site: Annotated[
        str | None,
        typer.Option("--site", help="Of the engine: take site_build_dockerfile and site_build_args of this site."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch nothing; only what is kept here is used.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a folder from which an image is built without network; what is not known by hash is refused by name."""
    from trispark.images.build_context import Request, make_context
    from trispark.images.declaration import load_declaration
    from trispark.images.lock_file import load_lock
    from trispark.images.package_index import PackageIndex
    from trispark.images.wheel_cache import WheelCache
    from trispark.project import source_state
    from trispark.site import load_site

    terminal = Terminal()
    terminal.say("images: no site, no node" if site is None else f"site: {site}")
    if site is not None:
        require_known(REPO, site)
    chosen = None if site is None else load_site(REPO / "inventory" / site, "optional")
    declaration = load_declaration(REPO)
    if chosen is not None and name in declaration.images and declaration.images[name].serves != chosen.engine:
        if chosen.build_dockerfile is not None or chosen.build_args:
            terminal.say(f"{name}: the site's site_build_dockerfile and site_build_args are of its engine, not of this")
        chosen = None
    project = source_state(REPO, __version__)
    request = Request(
        name=name,
        architecture=architecture.value,
        out=out,
        version=__version__,
        revision=f"{project.commit or 'unknown'}{'-changed' if project.dirty else ''}",
        dockerfile=None if chosen is None else chosen.build_dockerfile,
        arguments=None if chosen is None else chosen.build_args,
    )
    made = make_context(
        REPO,
        declaration,
        load_lock(REPO),
        request,
        WheelCache(REPO, terminal.say),
        None if offline else PackageIndex.of_pip(),
    )
    for each, identity in made.inputs.items():
        terminal.say(f"{each}: {identity}")
    terminal.say(f"{made.folder}: sha256 {made.hash}; in it:")
    terminal.say(f"  {shlex.join(made.command)}")
    archive = made.folder.parent / Path(made.archive).name
    terminal.say(f"then: ./trispark images push {name} --context {made.folder} --archive {archive} --to REPOSITORY")
    if as_json:
        found = {"folder": str(made.folder), "hash": made.hash, "command": made.command, "archive": str(archive)}
        terminal.json({**found, "inputs": dict(made.inputs)})
    raise typer.Exit(exit_codes.OK)


def images_lint(as_json: JsonOption = False) -> None:
    """Judge every declared Dockerfile by the rules of docs/images.md; status 0 only when nothing is found."""
    from trispark.images.declaration import load_declaration
    from trispark.images.dockerfile_lint import lint_all

    terminal = Terminal()
    terminal.say("images: no site, no node")
    found = lint_all(REPO, load_declaration(REPO))
    for name, each in found.items():
        terminal.say(f"{name}: " + (f"{len(each)} found" if each else "nothing found"))
        for one in each:
            terminal.error(f"TS-IMAGES-LINT: a Dockerfile breaks the rules: {name} {one}")
    if as_json:
        terminal.json(
            {"ok": not any(found.values()), "found": {name: list(map(str, each)) for name, each in found.items()}}
        )
    raise typer.Exit(exit_codes.FAILED if any(found.values()) else exit_codes.OK)

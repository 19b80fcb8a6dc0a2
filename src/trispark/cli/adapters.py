"""The verbs of ``./trispark adapters``: what runs inside the engine, and the builds that it binds to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trispark.cli import exit_codes
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption

if TYPE_CHECKING:
    from trispark.engine_api.check import Checked

REPO = Path(__file__).resolve().parents[3]


def adapters_check(
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="BUILD", help="For example sglang==0.5.21; all builds without it."),
    ] = None,
    as_json: JsonOption = False,
    really: Annotated[
        bool, typer.Option("--import", help="Also import the releases' modules with the hooks on; needs torch.")
    ] = False,
) -> None:
    """Compare what each adapter finds in each build with the expected matrix; status 0 only when all is equal."""
    from trispark.engine_api.check import check

    terminal = Terminal()
    terminal.say("adapters: no site, no node")
    found = check(REPO, engine or ())
    if really:
        found = replace(found, refused=_imported(found, terminal))
    for line in table_lines(found):
        terminal.say(line)
    problems = found.problems()
    for problem in problems:
        terminal.error(f"TS-ADAPTERS-MATRIX: {problem}")
    cells = sum(map(len, found.observed.values()))
    terminal.say(f"{cells} cells, {len(problems)} not as expected" if problems else f"{cells} cells, all as expected")
    if as_json:
        terminal.json(found.as_dict())
    raise typer.Exit(exit_codes.OK if found.equal else exit_codes.FAILED)


def _imported(found: Checked, terminal: Terminal) -> dict[str, dict[str, str]]:
    """Of every release that was checked, what did not bind of what should; native mechanisms are imported too."""
    from trispark.engine_api.environment import EngineEnvironment
    from trispark.engine_api.importing import import_release

    environment = EngineEnvironment(REPO, terminal.say)
    environment.make()
    refused: dict[str, dict[str, str]] = {}
    for build in found.builds:
        wheel = found.file.builds[build].wheel
        if wheel is None:
            continue
        names = [name for name, row in found.file.adapters.items() if row.builds[build].status in ("binds", "native")]
        refused[build] = import_release(environment, wheel.version, names)
        terminal.say(f"{build}: imported with {len(names)} adapters, {len(refused[build])} refused")
    return refused


def table_lines(found: Checked) -> Iterator[str]:
    """A row for each adapter, a column for each build; then every reason, and the images of the builds."""
    from trispark.engine_api.table import MARKS

    width = max(map(len, found.observed), default=0)
    yield " | ".join([f"{'':<{width}}", *found.builds])
    for adapter, cells in found.observed.items():
        yield " | ".join([f"{adapter:<{width}}", *(f"{MARKS[cell.status]:<{len(b)}}" for b, cell in cells.items())])
    for adapter, cells in found.observed.items():
        for build in cells:
            if (reason := found.file.adapters[adapter].builds[build].reason) is not None:
                yield f"{adapter} on {build}: {reason}"
    for name, image in found.file.images.items():
        if set(image.builds) & set(found.builds):
            yield f"image {name}: " + (
                "available" if image.available else f"not available, it lacks {', '.join(image.lacks)}"
            )

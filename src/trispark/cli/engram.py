"""The verbs of ``./trispark engram``: packed Engram shards."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.lab import require_lab
from trispark.cli.play import READ_ONLY
from trispark.cli.sites import LAB
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption, SiteOption

BYTES = 2 * 2**30
PAIRS = 7


class Level(StrEnum):
    """How much ``engram verify`` reads."""

    quick = "quick"
    full = "full"
    deep = "deep"


LimitOption = Annotated[
    float | None,
    typer.Option("--limit-mib-s", min=0, help="MiB a second at most, 0 for no bound; the site's own without it."),
]


def _play(
    playbook: str, site: str | None, extra: dict[str, Any], *, changing: bool, check: bool, as_json: bool
) -> None:
    terminal, name = verb.begin(site, changing=changing)
    player = verb.player(name, terminal)
    if name == LAB:
        require_lab(player.repo, any_version=playbook in READ_ONLY)
    result = player.play(playbook, extra, check=check)
    if result.ok:
        terminal.say(f"{playbook}: done in {result.seconds:.1f} s; events: .trispark/runs/{result.run_id}")
    if as_json:
        terminal.json(
            {
                "site": name,
                "status": result.status,
                "changed": result.changed,
                "nodes": result.published.get("shards"),  # none where packing ends with what it says
                "unreachable": sorted(result.unreachable),
            }
        )
    raise typer.Exit(exit_codes.of_run(result))


def engram_pack(
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace shards of ours that are wrong, once you know why they are.")
    ] = False,
    limit: LimitOption = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing, say what would change.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pack what is missing on every node, and hash shards of another tool; with progress, all nodes at once."""
    extra: dict[str, Any] = {"repair": "true"} if repair else {}
    if limit is not None:
        extra["limit_mib_s"] = f"{limit:g}"
    _play("shards", site, extra, changing=not check, check=check, as_json=as_json)


def engram_verify(
    level: Annotated[
        Level, typer.Option("--level", help="quick: samples; full: every hash, no holes; deep: also every row.")
    ] = Level.quick,
    limit: LimitOption = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every node's shards with the checkpoint and their manifests; changes nothing."""
    extra = {"level": level.value, **({} if limit is None else {"limit_mib_s": f"{limit:g}"})}
    _play("shards_verify", site, extra, changing=False, check=False, as_json=as_json)


def engram_inspect(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """What lies on each node: shards and their states, others of their kind with size and age; changes nothing."""
    _play("shards_inspect", site, {}, changing=False, check=False, as_json=as_json)


def engram_bench(
    directory: Annotated[Path, typer.Option("--directory", help="On the disk that is measured.")],
    size: Annotated[int, typer.Option("--bytes", min=1, help="Of the packed shard.")] = BYTES,
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="Of each comparison, interleaved.")] = PAIRS,
    as_json: JsonOption = False,
) -> None:
    """Packing, verification and lookups on a disk of this machine, each with its goal; asks no node."""
    from trispark.engram_bench import run

    terminal = Terminal()
    terminal.say(f"this machine: {directory}")
    found = run(directory, size, pairs)
    for line in bench_lines(found["figures"]):
        terminal.say(line)
    if as_json:
        terminal.json(found)
    missed = any(figure["met"] is False for figure in found["figures"].values())
    raise typer.Exit(exit_codes.FAILED if missed else exit_codes.OK)


def bench_lines(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line a figure: its value, and its goal where it has one."""
    width = max(map(len, figures))
    verdicts = {True: "met", False: "MISSED", None: "not judged"}
    lines = []
    for name, figure in figures.items():
        value = figure.get("not_measured") or "not measured" if figure["value"] is None else f"{figure['value']:.4g}"
        goal = " and ".join(f"{key.replace('_', ' ')} {bound:g}" for key, bound in figure["goal"].items())
        lines.append(f"{name:{width}}  {value}" + (f"  ({goal}: {verdicts[figure['met']]})" if goal else ""))
    return lines

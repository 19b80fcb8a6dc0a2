"""``./trispark images lock``: compare the locked inputs of images with where they come from, or lock one anew."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trispark.cli import exit_codes
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption

if TYPE_CHECKING:
    from trispark.images.lock_check import Sources

REPO = Path(__file__).resolve().parents[3]


def images_lock(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Entries, or images for all that they are made of; all without one."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare; the default, changes nothing.")] = False,
    update: Annotated[
        str | None, typer.Option("--update", metavar="NAME", help="Lock this input as images.yml declares it now.")
    ] = None,
    given: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="With --update: a copy of the tree or file.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nobody; only what is kept here is compared.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download wheels into .trispark/cache/images and hash them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare what images are made of with where it comes from, or lock one input anew.

    Status 0 only when everything that has a hash was compared and matches; UNRESOLVED is what has none. An update ends
    with 0 only when the input has a hash then.
    """
    wrong = [
        ("--update changes, --check compares: one of the two", update is not None and (check or bool(names))),
        ("--from goes with --update", given is not None and update is None),
        ("--download needs the index, --offline asks nobody", offline and download),
        ("--download goes with --check", download and update is not None),
    ]
    for text, broken in wrong:
        if broken:
            raise typer.BadParameter(text)
    terminal = Terminal()
    terminal.say("images: no site, no node")
    if update is not None:
        raise typer.Exit(_update(terminal, update, given, offline=offline, as_json=as_json))
    raise typer.Exit(_check(terminal, names or [], offline=offline, download=download, as_json=as_json))


def _sources(terminal: Terminal, *, offline: bool, download: bool) -> Sources:
    from trispark.images.image_members import ImageMembers
    from trispark.images.lock_check import Sources
    from trispark.images.package_index import PackageIndex, UrllibHttp
    from trispark.images.system_packages import SystemPackages
    from trispark.images.wheel_cache import WheelCache

    return Sources(
        root=REPO,
        cache=WheelCache(REPO, terminal.say),
        system=SystemPackages(),
        index=None if offline else PackageIndex.of_pip(),
        members=None if offline else ImageMembers(UrllibHttp(timeout_s=20.0)),
        download=download,
    )


def _check(terminal: Terminal, names: list[str], *, offline: bool, download: bool, as_json: bool) -> int:
    from trispark.images.declaration import load_declaration, overstated, stale
    from trispark.images.input_names import expanded
    from trispark.images.lock_check import check, passed, selected
    from trispark.images.lock_file import load_lock

    declaration, lock = load_declaration(REPO), load_lock(REPO)
    chosen, odd = lock, stale(declaration, lock)
    if names:
        parts = expanded(declaration, {*lock.entries, *odd}, names)
        for name, inputs in parts.items():
            if inputs != [name]:
                terminal.say(f"{name}: the image, by its {len(inputs)} inputs")
        chosen, odd = selected(lock, odd, {each for inputs in parts.values() for each in inputs})
    findings = []
    for finding in check(chosen, odd, _sources(terminal, offline=offline, download=download)):
        terminal.say(finding.line)
        findings.append(finding)
    problems = list(overstated(declaration, lock))
    for problem in problems:
        terminal.error(f"TS-IMAGES-OVERSTATED: {problem}")
    ok = passed(findings) and not problems
    counts = {
        status: sum(each.status == status for each in findings) for status in sorted({f.status for f in findings})
    }
    terminal.say(", ".join(f"{count} {status}" for status, count in counts.items()))
    if as_json:
        entries = {each.name: asdict(each) for each in findings}
        terminal.json({"ok": ok, "counts": counts, "entries": entries, "overstated": problems})
    return exit_codes.OK if ok else exit_codes.FAILED


def _update(terminal: Terminal, name: str, given: Path | None, *, offline: bool, as_json: bool) -> int:
    from trispark.images.declaration import load_declaration
    from trispark.images.lock_update import update, way_to_a_hash

    change = update(REPO, load_declaration(REPO), name, _sources(terminal, offline=offline, download=False), given)
    lines = list(change.lines)
    lacking = change.lacking
    still = "still" if change.before is None or not change.before.resolved else "now"
    state = "" if lacking is None else f"; {still} UNRESOLVED: {lacking}"
    terminal.say(f"{name}: " + ("changed" if lines else "as it was") + state)
    for line in lines:
        terminal.say(f"  {line}")
    if change.note:
        terminal.say(f"  {change.note}")
    if lacking is not None and change.after is not None:
        terminal.say(f"  do: {way_to_a_hash(name, change.after)}")
    if as_json:
        said = {"name": name, "changed": bool(lines), "diff": lines, "note": change.note}
        terminal.json({**said, "unresolved": lacking})
    return exit_codes.OK if lacking is None else exit_codes.FAILED

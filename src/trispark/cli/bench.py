"""`./trispark bench`: measures what runs, rounds inside a running boot, and what the load client itself is worth."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.lab import require_lab
from trispark.cli.play import parse_extra, result_json
from trispark.cli.play_site import play_on_site
from trispark.cli.sites import LAB
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption, SiteOption
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark_bench.truth.clients import Client

REPO = Path(__file__).resolve().parents[3]
PUBLIC = Path(".trispark/truth/public")
LOCK = "requirements/truth.txt"
INSTALL_S = 1800


def bench_run(
    site: Annotated[
        str | None, typer.Option("--site", envvar="TRISPARK_SITE", help="A directory of inventory/.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure what runs now, with the site's plan; as ./trispark play bench. No boot, no record, no verdict."""
    raise typer.Exit(play_on_site("bench", {}, site, check=False, diff=False, as_json=as_json))


def bench_truth(
    streams: Annotated[str, typer.Option("--streams", help="Numbers of streams, with commas.")] = "4,64",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds at each; from 16 streams a third.")] = 9,
    only: Annotated[str | None, typer.Option("--clients", help="Names of clients, with commas; ours always.")] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install the public clients below .trispark/truth first.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Ours and public load clients against a server on loopback that knows what it sent, and when."""
    from trispark_bench.truth.clients import ClientFailed, known_clients  # here: no other verb needs them
    from trispark_bench.truth.run import truth

    terminal = Terminal()
    terminal.say(f"site: {LAB}")
    widths = _widths(streams)
    if install:
        _install(terminal)
    clients = _chosen(known_clients(REPO / PUBLIC), only)
    with tempfile.TemporaryDirectory(prefix="trispark-truth-") as folder:
        try:
            found = truth(clients, widths, rounds, Path(folder), terminal.say)
        except ClientFailed as failure:
            raise TrisparkError(
                "TS-TRUTH-CLIENT",
                "the load client did not come to the end of its truth test",
                where="./trispark bench truth",
                expected="exit 0",
                observed=str(failure),
                remedy="run it again on a machine that does nothing else; it uses loopback alone",
            ) from None
    terminal.say("goals met" if found["goals_met"] else "goals NOT met")
    if as_json:
        terminal.json(found)


def bench_rounds(
    extra: Annotated[
        list[str] | None,
        typer.Option("-e", metavar="NAME=VALUE", help="feature=NAME, of the running engine."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=8, max=64, help="That count; one goes before.")] = 8,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch a feature of the running engine off and on by turns; a screening, never a verdict."""
    given = parse_extra(extra or ())
    if set(given) != {"feature"}:
        raise TrisparkError(
            "TS-CLI-EXTRA",
            "rounds take -e feature=NAME and nothing else",
            where="-e",
            expected="-e feature=engram_prefetch",
            observed=", ".join(sorted(given)) or "nothing",
            remedy="name one feature",
        )
    terminal, name = verb.begin(site, changing=True)
    player = verb.player(name, terminal)
    if name == LAB:
        require_lab(player.repo, any_version=False)
    result = player.play("rounds", {**given, "rounds": str(rounds)})
    if result.status == "interrupted":
        terminal.error(
            "the load client on the head brings the switch back at its end; were it killed, the engine does so by "
            "itself within 300 s (its line: [switch]); ./trispark play site boots the baseline at once"
        )
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))


def _widths(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 256 for part in parts):
        raise typer.BadParameter("whole numbers from 1 to 256, with commas between them", param_hint="--streams")
    return [int(part) for part in parts]


def _chosen(clients: list[Client], only: str | None) -> list[Client]:
    if only is None:
        return clients
    wanted = [name.strip() for name in only.split(",")]
    unknown = sorted(set(wanted) - {client.name for client in clients})
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]} is none of {'; '.join(client.name for client in clients)}", param_hint="--clients"
        )
    return [client for place, client in enumerate(clients) if place == 0 or client.name in wanted]


def _install(terminal: Terminal) -> None:
    """Raises TS-TRUTH-INSTALL."""
    target = REPO / PUBLIC
    terminal.say(f"installing the public clients in {PUBLIC}, from {LOCK}")
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", "--require-hashes"]
    for argv in ([sys.executable, "-m", "venv", str(target)], [*pip, "-r", str(REPO / LOCK)]):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=INSTALL_S)
            problem = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = [str(error)]
        if problem:
            raise TrisparkError(
                "TS-TRUTH-INSTALL",
                "the public load clients cannot be installed",
                where=str(PUBLIC),
                expected=f"what {LOCK} names",
                observed=problem[0],
                remedy="see that the package index answers, or leave --install out",
            )

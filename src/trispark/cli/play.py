"""Runs a playbook for a verb and says how it ended."""

from __future__ import annotations

import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from trispark.cli.terminal import Terminal
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.runner import RunResult

READ_ONLY = frozenset(
    {"backup", "drain", "images_verify", "preflight", "shards_inspect", "shards_verify", "status", "support", "verify"}
)
"""Playbooks that change nothing on the nodes: they may run without naming a site. Their headers say so too."""

NO_VERB = ("Not a verb of its own", "Used by the stage playbooks")
"""How the header of a playbook says that it cannot be run by itself."""

_PAIR = re.compile(r"[a-z_]+=.*", re.DOTALL)
"""A variable with its value, where a stage or playbook is expected; none of these has a `=`."""

RunPlaybook = Callable[..., "RunResult"]


def playbook_lines(playbooks: Path) -> list[str]:
    """Name and first comment line of each playbook that can be run by itself."""
    found = {}
    for path in sorted(playbooks.glob("*.yml")):
        lines = [line.removeprefix("#").strip() for line in _header(path)]
        if lines and not any(text in line for line in lines for text in NO_VERB):
            found[path.stem] = lines[0].removeprefix(f"Verb: {path.stem}. ")
    width = max(map(len, found), default=0)
    return [f"{name:<{width}}  {text}" for name, text in found.items()]


def _header(path: Path) -> list[str]:
    """The comment lines at the beginning of a file, after the document's mark."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return list(takewhile(lambda line: line.startswith("#"), (line for line in lines if line != "---")))


def _hanging(line: str, width: int) -> str:
    """A name and its text, wrapped below the text's first word."""
    name, gap, text = re.split(r"(\s+)", line, maxsplit=1)
    indent = " " * (2 + len(name) + len(gap))
    wrapped = textwrap.wrap(text, max(20, width - len(indent)), break_on_hyphens=False)
    return f"  {name}{gap}" + f"\n{indent}".join(wrapped)


class PairsCommand(TyperCommand):
    """A verb with `-e NAME=VALUE`; a pair in the place of an argument is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises TS-CLI-EXTRA for such a pair, and as Typer does for every other mistake."""
        before = ["", *args]
        for option, word in itertools.pairwise(before):
            if not option.startswith("-") and _PAIR.fullmatch(word):
                raise TrisparkError(
                    id="TS-CLI-EXTRA",
                    what="a variable is given by -e",
                    where=f"./trispark {ctx.info_name}",
                    expected=f"-e {word}",
                    observed=word,
                    remedy=f"write -e {word}",
                )
        return super().parse_args(ctx, args)


class PlayCommand(PairsCommand):
    """`play`, whose help lists the playbooks as they are now."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        listed = playbook_lines(Path(__file__).resolve().parents[3] / "playbooks")
        width = max(40, min(shutil.get_terminal_size().columns, 120))
        formatter.write("\n".join([" Playbooks:", *(_hanging(line, width) for line in listed)]) + "\n")


def parse_extra(pairs: Iterable[str]) -> dict[str, str]:
    """``-e name=value`` as given: values stay strings, the resolver parses each by its declared type.

    Raises TS-CLI-EXTRA for another form, or a name that is given two values.
    """
    extra: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise TrisparkError(
                id="TS-CLI-EXTRA",
                what="-e takes name=value",
                where="-e",
                expected="for example -e feature=wo_a",
                observed=pair,
                remedy="write -e name=value",
            )
        if extra.get(name, value) != value:
            raise TrisparkError(
                id="TS-CLI-EXTRA",
                what=f"-e {name} is given twice, with different values",
                where="-e",
                expected="one value for each name",
                observed=f"{extra[name]} and {value}",
                remedy=f"leave one of them, for example -e {name}={value}",
            )
        extra[name] = value
    return extra


class Player:
    """Plays playbooks of one repository on one site, with progress on one terminal."""

    def __init__(self, repo: Path, site: str, terminal: Terminal, run: RunPlaybook | None = None) -> None:
        self.repo = repo
        self.site = site
        self.terminal = terminal
        self._run = run

    def play(
        self, name: str, extra: dict[str, Any] | None = None, *, check: bool = False, diff: bool = False
    ) -> RunResult:
        """Run it; print the errors of a failed run on standard error, one line each."""
        # Here, because the verbs that work offline start without them.
        from trispark.cli.progress import progress
        from trispark.runner import run_playbook

        run = self._run or run_playbook
        with progress(self.terminal) as observer:
            result = run(self.repo, name, site=self.site, extra=extra, check=check, diff=diff, observer=observer)
        if not result.ok:
            self._explain(result)
        return result

    def run_quietly(self, name: str) -> RunResult:
        """Run it and show nothing of it: for who says by himself what it found."""
        from trispark.run_events import QuietObserver
        from trispark.runner import run_playbook

        run = self._run or run_playbook
        return run(self.repo, name, site=self.site, extra={}, check=False, diff=False, observer=QuietObserver())

    def _explain(self, result: RunResult) -> None:
        from trispark import shard_job
        from trispark.run_events import error_lines

        events = (
            result.directory.relative_to(self.repo) if result.directory.is_relative_to(self.repo) else result.directory
        )
        if result.status == "interrupted":
            where = f" in phase '{result.last_play}'" if result.last_play else ""
            where += f", task '{result.last_task}'" if result.last_task else ""
            self.terminal.error(
                f"TS-PLAY-INTERRUPTED: {result.playbook} was interrupted{where}; what it had done so far stays; "
                f"do: ./trispark status --site {self.site} shows the nodes, the same command goes on"
            )
            if result.last_task.endswith(shard_job.TASK):  # Ansible may put the role's name before it
                self.terminal.error(shard_job.INTERRUPTED)
        else:
            for line in error_lines(result.failures) or [f"TS-PLAY-FAILED: {result.playbook} ended with {result.rc}"]:
                self.terminal.error(line)
        self.terminal.error(f"events of this run: {events}")


def result_json(result: RunResult, site: str) -> dict[str, Any]:
    """A run as ``play --json`` prints it."""
    return {
        "site": site,
        "playbook": result.playbook,
        "run_id": result.run_id,
        "status": result.status,
        "rc": result.rc,
        "seconds": result.seconds,
        "changed": result.changed,
        "plays": [{"name": play.name, "seconds": play.seconds} for play in result.plays],
        "failures": [
            {"node": failure.node, "task": failure.task, "message": failure.message, "check_id": failure.check_id}
            for failure in result.failures
        ],
        "unreachable": sorted(result.unreachable),
        "published": result.published,
    }

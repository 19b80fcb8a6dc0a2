"""Runs one playbook of this repository through ansible-runner and keeps its events below ``.trispark/runs/``."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from trispark.errors import TrisparkError
from trispark.fleet_lock import handed_on
from trispark.host.state import private_directory, state_directory
from trispark.lifeline import tied
from trispark.run_events import FailedEvent, PlaySeconds, QuietObserver, RunEvents, RunObserver

INTERRUPT_GRACE_S = 5.0
"""How long ansible-playbook may take to end after the first Ctrl-C before it is killed. It ends at once, or hangs for
good where the signal met it between two of its processes; what it leaves is the same as after a kill."""
MISSED_TASKS = 3
"""So many tasks begun after it was asked to end say that it did not notice: Python drops an exception that a signal
raises inside a finaliser, and ansible-playbook asks itself once. One or two may be on their way when it is asked."""

KEPT_RUNS = 50
"""How many runs stay in ``.trispark/runs``, the one that begins included; ``./trispark play --help`` says so."""
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-.+")
PID_FILE = "pid"
"""In a run's directory while it goes on: the process that writes there."""
_OF_ANOTHER_RUN = ("ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_STDOUT_CALLBACK", "ORIGINAL_STDOUT_CALLBACK")
_PREFIXES_OF_ANOTHER_RUN = ("AWX_", "RUNNER_", "ANSIBLE_CACHE_PLUGIN")


@dataclass(frozen=True)
class RunResult:
    """One finished run of a playbook.

    ``status`` is successful, failed or interrupted; ``directory`` holds ``job_events/``, ``stdout`` and ``rc``;
    ``published`` is the dictionary ``trispark`` that the playbook gave to ``set_stats``.
    """

    run_id: str
    playbook: str
    directory: Path
    rc: int
    status: str
    seconds: float
    stats: dict[str, dict[str, int]]
    plays: list[PlaySeconds]
    failures: list[FailedEvent]
    unreachable: frozenset[str]
    published: dict[str, Any]
    changed: bool
    last_play: str
    last_task: str

    @property
    def ok(self) -> bool:
        return self.status == "successful"


def new_run_id(playbook: str) -> str:
    """Sorts by time; the random tail keeps two runs of one second apart."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{stamp}-{playbook.replace('/', '-')}-{secrets.token_hex(3)}"


def prune_runs(runs: Path, keep: int) -> list[str]:
    """Remove all but the newest ``keep`` runs; one that goes on stays, as does what does not look like a run's
    directory. Names removed."""
    found = sorted(path for path in runs.glob("*") if path.is_dir() and _RUN_ID.fullmatch(path.name))
    oldest = found[: len(found) - keep] if len(found) > keep else []
    removed = [path for path in oldest if not _goes_on(path)]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)  # another run may prune at the same time
    return [path.name for path in removed]


def _goes_on(run: Path) -> bool:
    """A long campaign's own run is older than the runs of its boots."""
    try:
        pid = int((run / PID_FILE).read_text(encoding="ascii"))
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def forget_outer_run(environment: MutableMapping[str, str]) -> None:
    """Take out what the ansible-runner above has set for its own run: a run inside a run has callbacks of its own."""
    for name in [*environment]:
        if name in _OF_ANOTHER_RUN or name.startswith(_PREFIXES_OF_ANOTHER_RUN):
            del environment[name]


class Interrupts:
    """First INT or TERM: ask ansible-playbook to end by itself. After the grace time, at a second one, or when it goes
    on as if it had not been asked: kill it."""

    def __init__(
        self, events: RunEvents, kill: Callable[[int, int], None] = os.kill, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._events = events
        self._kill = kill
        self._now = now
        self._asked_at: float | None = None
        self._insisted = False
        self._tasks_then = 0

    @property
    def interrupted(self) -> bool:
        return self._asked_at is not None

    def handle(self, _number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
        """The signal handler."""
        if self._asked_at is not None:
            self._insisted = True
            return
        self._asked_at = self._now()
        self._tasks_then = self._events.tasks
        if self._events.pid is None:
            self._insisted = True
            return
        try:
            self._kill(self._events.pid, signal.SIGINT)
        except ProcessLookupError:
            self._insisted = True

    def must_kill(self) -> bool:
        """The cancel callback of ansible-runner, which kills the process group when it says true."""
        if self._asked_at is None:
            return False
        missed = self._events.tasks - self._tasks_then >= MISSED_TASKS
        return self._insisted or missed or self._now() - self._asked_at > INTERRUPT_GRACE_S

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle INT and TERM inside; the main thread only, as Python wants it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


class Limit:
    """Ends a run at `at` (of the clock), as a person would with Ctrl-C."""

    def __init__(self, interrupts: Interrupts, at: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interrupts = interrupts
        self._at = at
        self._now = now
        self.passed = False

    def must_kill(self) -> bool:
        """The cancel callback of ansible-runner."""
        if not self.passed and not self._interrupts.interrupted and self._now() >= self._at:
            self.passed = True
            self._interrupts.handle()
        return self._interrupts.must_kill()


def playbook_environment(repo: Path, site: str, run_id: str) -> dict[str, str]:
    """What is set for ansible-playbook beside the caller's environment."""
    tools = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    return {
        # ansible-playbook is called by name; the one of this interpreter must be found first.
        "PATH": path if path.split(os.pathsep)[0] == tools else f"{tools}{os.pathsep}{path}",
        "ANSIBLE_CONFIG": str(repo / "ansible.cfg"),
        # ansible-runner switches host key checking off unless the environment says something.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_NOCOLOR": "True",
        "TRISPARK_SITE": site,
        "TRISPARK_RUN_ID": run_id,
        **handed_on(),
        **_kept_compiled(),
    }


def _kept_compiled() -> dict[str, str]:
    """ansible-playbook keeps compiled Python where this process does (startup.keep_compiled); else it would compile
    Ansible and this project anew in each run."""
    if sys.dont_write_bytecode or sys.pycache_prefix is None:
        return {}
    return {"PYTHONPYCACHEPREFIX": sys.pycache_prefix, "PYTHONDONTWRITEBYTECODE": ""}


def run_playbook(
    repo: Path,
    name: str,
    *,
    site: str,
    extra: Mapping[str, Any] | None = None,
    check: bool = False,
    diff: bool = False,
    arguments: Sequence[str] = (),
    observer: RunObserver | None = None,
    deadline_s: float = math.inf,
) -> RunResult:
    """Run ``playbooks/<name>.yml`` on ``inventory/<site>``; ``extra`` are -e values, ``arguments`` further ones.

    After ``deadline_s`` it is asked to end, then killed, and has failed with TS-PLAY-LATE. Raises TS-PLAY-UNKNOWN for a
    playbook that is not there. A failed run is a result, not an exception. When this process ends, ansible-playbook
    ends too.
    """
    import ansible_runner

    playbook = repo / "playbooks" / f"{name}.yml"
    if not playbook.is_file():
        known = sorted(path.stem for path in (repo / "playbooks").glob("*.yml"))
        near = difflib.get_close_matches(name, known, n=1)
        raise TrisparkError(
            id="TS-PLAY-UNKNOWN",
            what=f"no playbook {name}",
            where="playbooks/",
            expected=f"one of {', '.join(known)}",
            observed=name,
            remedy=f"{f'./trispark play {near[0]}' if near else 'name one of them'}; ./trispark play --help has a line "
            "for each",
        )
    run_id = new_run_id(name)
    runs = private_directory(state_directory(repo) / "runs")
    prune_runs(runs, KEPT_RUNS - 1)
    directory = runs / run_id
    private_directory(directory / "env")
    # ansible-runner reads settings from this file only. One second is how late a Ctrl-C may be noticed.
    (directory / "env" / "settings").write_text(json.dumps({"pexpect_timeout": 1}), encoding="utf-8")
    (directory / PID_FILE).write_text(str(os.getpid()), encoding="ascii")
    events = RunEvents(observer or QuietObserver())
    interrupts = Interrupts(events)
    limit = Limit(interrupts, time.monotonic() + deadline_s)

    def take(event: dict[str, Any]) -> bool:
        events.add(event)
        return True

    flags = [flag for flag, wanted in (("--check", check), ("--diff", diff)) if wanted]
    started = time.monotonic()
    with interrupts.installed():
        finished = ansible_runner.interface.init_runner(
            private_data_dir=str(directory),
            artifact_dir=str(runs),
            ident=run_id,
            project_dir=str(repo),
            playbook=str(playbook),
            inventory=str(repo / "inventory" / site),
            envvars=playbook_environment(repo, site, run_id),
            extravars=dict(extra or {}),
            cmdline=shlex.join([*flags, *arguments]) or None,
            suppress_env_files=True,
            fact_cache_type="memory",
            quiet=True,
            event_handler=take,
            cancel_callback=limit.must_kill,
        )
        finished.config.command = tied(finished.config.command)
        finished.run()
    events.close()
    (directory / PID_FILE).unlink(missing_ok=True)
    _forget_environment(directory / "command")
    rc = finished.rc if isinstance(finished.rc, int) else 254
    stopped = interrupts.interrupted and rc != 0 and not limit.passed
    status = "interrupted" if stopped else "successful" if rc == 0 else "failed"
    failures = events.failures
    if limit.passed and rc != 0:
        failures = [FailedEvent("localhost", name, str(_late(name, deadline_s, events))), *failures]
    if rc != 0 and not failures and status == "failed":
        failures = [FailedEvent("localhost", "ansible-playbook", _last_words(directory / "stdout", rc))]
    return RunResult(
        run_id=run_id,
        playbook=name,
        directory=directory,
        rc=rc,
        status=status,
        seconds=round(time.monotonic() - started, 3),
        stats=events.stats,
        plays=events.plays,
        failures=failures,
        unreachable=frozenset(events.unreachable),
        published=events.published,
        changed=events.changed,
        last_play=events.last_play,
        last_task=events.last_task,
    )


def _late(name: str, deadline_s: float, events: RunEvents) -> TrisparkError:
    return TrisparkError(
        id="TS-PLAY-LATE",
        what=f"{name} did not end in time, it was stopped",
        where=f"playbooks/{name}.yml",
        expected=f"its end within {deadline_s:g} s",
        observed=f"still at {events.last_task or 'its beginning'}",
        remedy="see what that step waited for in .trispark/runs; ./trispark play rollback ends in a verified state",
    )


def _forget_environment(command: Path) -> None:
    """ansible-runner writes the caller's whole environment beside the events; only the command is worth keeping."""
    try:
        kept = json.loads(command.read_text(encoding="utf-8"))
        kept.pop("env", None)
        command.write_text(json.dumps(kept), encoding="utf-8")
    except (OSError, ValueError):
        command.unlink(missing_ok=True)


def _last_words(stdout: Path, rc: int) -> str:
    """What ansible-playbook said when it ended before any task: a syntax or inventory error."""
    try:
        lines = [line.strip() for line in stdout.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    errors = [line for line in lines if line.startswith(("ERROR!", "[ERROR]"))]
    said = errors or [line for line in lines if line]
    return said[0] if errors else said[-1] if said else f"ended with exit status {rc}"

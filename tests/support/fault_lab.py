"""What the tests of the fault matrix do to the lab and see of it: from outside, never through what they test.

A fault is injected in a phase, something is promised, something is observed. `Matrix` keeps one row of each; the page
docs/faults.md is made of them.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BOOT, SERVING, TRIAL, ROLLBACK = "boot", "serving", "trial", "rollback"
BOUND_S, NEVER_OVER_S = 20.0, 60.0
"""For the bounded state with a node gone: what is promised, and what may never be passed."""
STATE = "/var/lib/trispark"


@dataclass
class Row:
    """One fault in one phase. `seconds`: of what was promised; None where nothing is timed."""

    fault: str
    injected: str
    phase: str
    promised: str
    observed: str = ""
    seconds: float | None = None
    passed: bool = False


@dataclass
class Matrix:
    """Rows of a run, written to a file after each, so that an interrupted run keeps what it has.

    Many faults end refused, and that the same rollback serves once they are gone is promised of all of them. It is
    shown once for those in a row: `mended` rows have not passed before `served` has seen a fleet that serves.
    """

    path: Path
    rows: list[Row] = field(default_factory=list)
    unserved: list[Row] = field(default_factory=list)

    @contextmanager
    def row(self, fault: str, injected: str, phase: str, promised: str, *, mended: bool = False) -> Iterator[Row]:
        row = Row(fault, injected, phase, promised)
        try:
            yield row
            assert row.observed, "a row says what was observed"
            row.passed = not mended
            if mended:
                self.unserved.append(row)
        except BaseException as error:
            row.observed = row.observed or " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise
        finally:
            self.rows.append(row)
            self._write()

    def served(self, lab: Any) -> str:
        """A rollback has ended well: all ranks serve its boot, every node has the same records, and what was mended
        before it has passed. The boot's id."""
        boot = require_serving(lab)
        chains = {lab.node(name, "ls", f"{STATE}/records") for name in lab.nodes}
        assert len(chains) == 1, "every node has every record"
        for row in self.unserved:
            row.observed += f"; mended: the next rollback served ({boot})"
            row.passed = True
        self.unserved.clear()
        self._write()
        return boot

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([asdict(each) for each in self.rows], indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    """A finished verb of the front end; `said` is what `--json` printed."""

    rc: int
    output: str
    said: dict[str, Any]
    seconds: float

    @property
    def rollback(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.said.get("published") or {}).get("rollback") or {}
        return found


def front(lab: Any, *words: str, timeout_s: float = 240, hidden: Sequence[str] = ()) -> Ran:
    """`./trispark WORDS --json`. `hidden`: directories of the project that are empty for it alone, in a mount
    namespace of its own: other tests use the same checkout."""
    argv = [str(lab.root / "trispark"), *words, "--json"]
    began = time.monotonic()
    done = subprocess.run(
        without(lab.root, hidden, argv) if hidden else argv,
        cwd=lab.root,
        capture_output=True,
        text=True,
        timeout=timeout_s * lab.patience,
        check=False,
    )
    seconds = time.monotonic() - began
    lines = done.stdout.splitlines()
    said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return Ran(done.returncode, done.stdout + done.stderr, said, seconds)


def without(root: Path, hidden: Sequence[str], argv: Sequence[str]) -> list[str]:
    """`argv` behind what hides directories from it."""
    mounts = "; ".join(f"mount -t tmpfs none {shlex.quote(str(root / name))}" for name in hidden)
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return [*own, "sh", "-ec", f'{mounts}; exec "$@"', "sh", *argv]


def begin(lab: Any, *words: str) -> subprocess.Popen[str]:
    """A verb of the front end that goes on while the test looks; a process group of its own, which hears Ctrl-C also
    where the tests run in the background."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", str(lab.root / "trispark"), *words],
        cwd=lab.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def until(
    what: str,
    condition: Callable[[], bool],
    timeout_s: float,
    pause_s: float = 0.1,
    process: subprocess.Popen[str] | None = None,
) -> None:
    """Wait for something that the test can see, while `process` goes on; the pause only spares the processor."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(f"it ended before {what}: {process.communicate()[0][-2500:]}")
        time.sleep(pause_s)


def engines(lab: Any) -> dict[str, dict[str, Any] | None]:
    return {name: lab.inspect(name) for name in lab.nodes}


def boot_of(state: dict[str, Any] | None) -> str | None:
    return None if state is None else str(state["Config"]["Labels"]["trispark.boot"])


def running(state: dict[str, Any] | None) -> bool:
    return state is not None and bool(state["State"]["Running"])


def started(lab: Any, node: str, before: str | None) -> Callable[[], bool]:
    """Whether an engine of another boot than `before` runs on the node."""

    def seen() -> bool:
        state = lab.inspect(node)
        return running(state) and boot_of(state) != before

    return seen


def require_one_generation(lab: Any, nodes: tuple[str, ...] | None = None) -> None:
    """No two boots run on the fleet, whatever else is broken."""
    found = {name: lab.inspect(name) for name in nodes or lab.nodes}
    boots = {boot_of(state) for state in found.values() if running(state)}
    assert len(boots) <= 1, f"engines of several boots run: {boots}"


def require_stopped(lab: Any, *nodes: str) -> None:
    assert [name for name in nodes if lab.inspect(name) is not None] == []


def require_serving(lab: Any) -> str:
    """All ranks run one boot that has a valid record on every node, and the head answers; the boot's id."""
    found = engines(lab)
    assert all(running(state) for state in found.values()), {
        name: state and state["State"] for name, state in found.items()
    }
    (boot,) = {boot_of(state) for state in found.values()}
    for name in lab.nodes:
        record = json.loads(lab.node(name, "sh", "-c", f"cat {STATE}/records/*-{boot}.json"))
        assert record["outcome"]["state"] == "valid"
        assert not lab.node(name, "sh", "-c", f"cat {STATE}/rollback.json 2>/dev/null || true")
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=5).status)"
    assert lab.node("spark0", "python3", "-c", asked).strip() == b"200"
    return str(boot)


def current(lab: Any, node: str) -> str:
    return lab.node(node, "readlink", f"{STATE}/current").decode().strip().removeprefix("generations/")


def last_good(lab: Any) -> str:
    marks = lab.node("spark0", "cat", f"{STATE}/good.jsonl").decode().splitlines()
    return str(json.loads(marks[-1])["generation"])


def docker(*words: str, check: bool = True) -> None:
    subprocess.run(["docker", *words], check=check, capture_output=True, timeout=120)


def kill_group(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """The controller and all that it started, as a machine that goes down would end them."""
    os.killpg(process.pid, number)


def shell(lab: Any, node: str, script: str) -> str:
    return str(lab.node(node, "sh", "-ec", script).decode())


def node_is_up(node: str) -> bool:
    done = subprocess.run(
        ["docker", "exec", node, "/usr/local/sbin/lab-ready"], capture_output=True, timeout=30, check=False
    )
    return done.returncode == 0

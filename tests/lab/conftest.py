"""The lab for tests that do not believe the program: they look at the nodes with docker, not through trispark.

Everything is asked of the three node containers themselves (`docker exec`), of their own Docker Engines, of files and
of /proc. The lab is made when it is absent, and then removed again at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trispark.lab.layout import LABEL_ROOT, root_id

ROOT = Path(__file__).resolve().parents[2]
NODES = ("spark0", "spark1", "spark2")
PLAY_TIMEOUT_S = 600
PATIENCE = float(os.environ.get("TRISPARK_TEST_PATIENCE", "1"))
"""By how much longer every wait may take, for a machine that does other work too."""
TOOLS = Path(sys.executable).parent


@dataclass(frozen=True)
class Played:
    """A finished ansible-playbook."""

    rc: int
    output: str


def run(*command: str, timeout: float = 60, check: bool = True, data: bytes | None = None) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, input=data)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.stdout


@dataclass(frozen=True)
class Lab:
    """The three nodes as seen from outside."""

    nodes: tuple[str, ...] = NODES
    root: Path = ROOT
    patience: float = PATIENCE

    def command(self, name: str, prefix: str = "playbooks/", tools: Path = TOOLS, **extra: str) -> list[str]:
        """`ansible-playbook` itself, not the front end: operators use it directly. `tools` is its directory."""
        words = [word for key, value in extra.items() for word in ("-e", f"{key}={value}")]
        return [str(tools / "ansible-playbook"), f"{prefix}{name}.yml", *words]

    def environment(self) -> dict[str, str]:
        """No playbook may print a deprecation warning, on any supported release of ansible-core."""
        inherited = {key: value for key, value in os.environ.items() if key != "ANSIBLE_CONFIG"}
        return {**inherited, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_DEPRECATION_WARNINGS": "True"}

    def play(
        self,
        name: str,
        directory: Path = ROOT,
        prefix: str = "playbooks/",
        options: Sequence[str] = (),
        tools: Path = TOOLS,
        timeout_s: float = PLAY_TIMEOUT_S,
        **extra: str,
    ) -> Played:
        """A finished playbook; `options` are those of ansible-playbook."""
        runs = self.root / ".trispark" / "runs"
        known = set(runs.glob("*"))
        done = subprocess.run(
            [*self.command(name, prefix, tools, **extra), *options],
            cwd=directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s * self.patience,
            check=False,
        )
        output = done.stdout + done.stderr
        # The boots of a stage are runs of their own.
        inner = [(run / "stdout").read_text(errors="replace") for run in set(runs.glob("*")) - known]
        assert not any("DEPRECATION WARNING" in text for text in inner)
        assert "DEPRECATION WARNING" not in output, output[-4000:]
        return Played(done.returncode, output)

    def node(self, name: str, *command: str, check: bool = True, data: bytes | None = None) -> bytes:
        interactive = ["-i"] if data is not None else []
        return run("docker", "exec", *interactive, name, *command, check=check, data=data)

    def inspect(self, name: str) -> dict[str, Any] | None:
        """The engine's container on a node, as that node's own Docker Engine describes it; None when there is none."""
        text = self.node(name, "docker", "inspect", "trispark-engine", check=False)
        found = json.loads(text or b"[]")
        return found[0] if found else None

    def log(self, name: str) -> str:
        return run("docker", "exec", name, "sh", "-c", "docker logs trispark-engine 2>&1").decode()

    def hash_tree(self, name: str) -> dict[str, str]:
        """{path: kind, mode and sha256 or link target} of all that trispark keeps on a node."""
        script = (
            "cd / && find var/lib/trispark srv/engram \\( -type f -printf '%p %y %m ' -exec sha256sum {} \\; \\) "
            "-o \\( -type l -printf '%p %y %m %l\\n' \\) -o \\( -type d -printf '%p %y %m\\n' \\)"
        )
        lines = self.node(name, "sh", "-c", script).decode().splitlines()
        return {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines}


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab, made by the front end; removed at the end when it was not there before."""
    ours = f"label={LABEL_ROOT}={root_id(ROOT)}"
    there = run("docker", "ps", "--all", "--quiet", "--filter", "label=trispark.lab=1", "--filter", ours).strip() != b""
    run(str(ROOT / "trispark"), "lab", "up", timeout=600)
    yield Lab()
    if not there:
        run(str(ROOT / "trispark"), "lab", "down", timeout=300)


@pytest.fixture
def known(lab: Lab) -> Lab:
    """The lab with whole shards and a baseline that passed its gates once, whether it serves now or not."""
    good = lab.node("spark0", "cat", "/var/lib/trispark/good.jsonl", check=False)
    if not good:
        played = lab.play("site", repair="true")
        assert played.rc == 0, played.output[-4000:]
    return lab


@pytest.fixture
def serving(known: Lab) -> Lab:
    """The lab with one boot running on all three ranks; brought back when an earlier test has ended it."""
    states = [known.inspect(name) for name in NODES]
    whole = all(state and state["State"]["Running"] for state in states)
    if not whole or len({state["Config"]["Labels"]["trispark.boot"] for state in states if state}) != 1:
        played = known.play("site", repair="true")
        assert played.rc == 0, played.output[-4000:]
    return known

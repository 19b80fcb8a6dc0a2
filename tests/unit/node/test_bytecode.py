"""The compiled copy of an installed agent: used, replaced with the agent, and never trusted from another hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trispark_node.build import build

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def agent_bytes(tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("agent") / "trispark-node"
    build(ROOT, out)
    return out.read_bytes()


def install(root: Path, data: bytes, place: str = "bin") -> Path:
    path = root / place / "trispark-node"
    path.parent.mkdir()
    path.write_bytes(data)
    return path


def ask(agent: Path, root: Path) -> dict:
    done = subprocess.run(
        [sys.executable, str(agent), "version"],
        input="{}",
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TRISPARK_ROOT": str(root)},
    )
    return json.loads(done.stdout)


def copies(root: Path) -> list[Path]:
    return sorted((root / "run").glob("agent-*"))


def test_one_copy_is_made_and_used(tmp_path, agent_bytes) -> None:
    agent = install(tmp_path, agent_bytes)
    first = ask(agent, tmp_path)
    (copy,) = copies(tmp_path)
    assert list((copy / "trispark_node" / "__pycache__").glob("cli.*.pyc"))
    changed = (copy / "trispark_node" / "__init__.py").read_text(encoding="utf-8")
    (copy / "trispark_node" / "__init__.py").write_text(changed + "\nVERSION = 'from the copy'\n", encoding="utf-8")
    assert ask(agent, tmp_path)["version"] == "from the copy"
    assert first["version"] != "from the copy"
    assert copies(tmp_path) == [copy]


def test_a_copy_that_others_can_write_is_not_used(tmp_path, agent_bytes) -> None:
    agent = install(tmp_path, agent_bytes)
    first = ask(agent, tmp_path)
    (copy,) = copies(tmp_path)
    (copy / "trispark_node" / "__init__.py").write_text("VERSION = 'planted'\n", encoding="utf-8")
    copy.chmod(0o777)
    assert ask(agent, tmp_path) == first


def test_another_agent_has_another_copy_and_the_older_goes(tmp_path, agent_bytes) -> None:
    agent = install(tmp_path, agent_bytes)
    ask(agent, tmp_path)
    (copy,) = copies(tmp_path)
    older = copy.rename(copy.with_name("agent-0000000000000000-cpython-311"))
    ask(agent, tmp_path)
    assert copies(tmp_path) == [copy]
    assert not older.exists()


def test_without_its_place_or_a_writable_one_the_file_itself_runs(tmp_path, agent_bytes) -> None:
    elsewhere = install(tmp_path, agent_bytes, "somewhere")
    assert ask(elsewhere, tmp_path)["ok"]
    assert copies(tmp_path) == []
    agent = install(tmp_path, agent_bytes)
    (tmp_path / "run").write_text("a file in the way", encoding="utf-8")
    assert ask(agent, tmp_path)["ok"]

"""The built agent: one reproducible file that runs alone."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trispark_node import build as building
from trispark_node.build import build
from trispark_node.errors import AgentError

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    out = tmp_path_factory.mktemp("agent") / "trispark-node"
    return out, build(REPO, out)


def test_runs_alone(agent, tmp_path):
    path, digest = agent
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert path.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    # -I: neither this tree nor this environment's packages can help.
    done = subprocess.run(
        [sys.executable, "-I", str(path), "record-head"],
        input='{"protocol": 3}',
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRISPARK_ROOT": str(tmp_path)},
    )
    assert json.loads(done.stdout) == {"ok": True, "head": None}
    assert done.stderr == ""


def test_docker_sdk_is_inside_and_pure(agent, tmp_path):
    path, _ = agent
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import docker as d, requests as r; print(d.__file__, r.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert all(name.startswith(str(path)) for name in done.stdout.split())
    names = zipfile.ZipFile(path).namelist()
    compiled = [name for name in names if name.endswith((".so", ".pyc", "RECORD", "trispark_node/build.py"))]
    assert compiled == [f"trispark_node/native/{machine}/libengram_pack.so" for machine in ("aarch64", "x86_64")]
    for package in ("docker", "requests", "urllib3", "idna", "certifi", "charset_normalizer"):
        assert [n for n in names if n.startswith(f"{package}-") and "LICENSE" in n], package


def test_same_input_same_bytes(agent, tmp_path):
    path, digest = agent
    other = tmp_path / "again"
    assert build(REPO, other) == digest
    assert other.read_bytes() == path.read_bytes()


def test_what_is_up_to_date_is_not_built_again_and_what_is_damaged_is(agent, tmp_path, monkeypatch):
    path, digest = agent
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert build(REPO, copy) == digest
    copy.write_bytes(path.read_bytes().replace(b"TS-AGENT-VERB", b"TS-AGENT-VERV"))
    with pytest.raises(FileNotFoundError):
        build(REPO, copy)


def test_a_package_index_that_never_answers_does_not_hold_the_build(tmp_path, monkeypatch):
    """The lab's cache is locked meanwhile."""
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\nexec sleep 600\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setattr(building, "PIP_DEADLINE_S", 0.2)
    with pytest.raises(AgentError) as caught:
        build(REPO, tmp_path / "out")
    assert (caught.value.id, caught.value.expected) == ("TS-BUILD-AGENT", "pip's end within 0.2 s")
    assert not (tmp_path / "out").exists()


def test_an_older_python_is_told_so_in_the_agent_s_own_form(monkeypatch, capsys):
    """It reaches the message before anything that it cannot parse."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setitem(sys.modules, "trispark_node.cli", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(building.__file__).with_name("__main__.py")), run_name="__main__")
    said = json.loads(capsys.readouterr().out)
    assert (ended.value.code, said["ok"]) == (1, False)
    assert (said["error"]["id"], said["error"]["observed"]) == ("TS-AGENT-PYTHON", "3.9")

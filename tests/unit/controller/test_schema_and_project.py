"""Published schemas equal the models; the project's state is read from git."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from trispark.project import ProjectState, project_state, source_state
from trispark.schema import main, schema_texts

REPOSITORY = Path(__file__).resolve().parents[3]


def test_committed_schemas_equal_the_models(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    committed = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "schemas").glob("*.json")}
    assert committed == schema_texts(), "run: python -m trispark.schema"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "experiments").glob("*.yml")), ids=lambda path: path.stem)
def test_experiments_follow_their_published_schema(path: Path) -> None:
    schema = yaml.safe_load((REPOSITORY / "schemas" / f"{path.stem}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_project_state(tmp_path: Path) -> None:
    assert project_state(tmp_path, "1") == ProjectState("1", None, True)
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1", encoding="utf-8")
    assert project_state(tmp_path, "1").commit is None
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "x")
    clean = project_state(tmp_path, "1")
    assert clean.commit is not None
    assert len(clean.commit) == 40
    assert not clean.dirty
    (tmp_path / "b").write_text("1", encoding="utf-8")
    assert project_state(tmp_path, "1").dirty


def test_files_of_a_site_are_no_source_of_an_image(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for name in ("inventory/lab/hosts.yml", "Dockerfiles/images.yml", "inventory.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1", encoding="utf-8")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "x")

    def dirty() -> tuple[bool, bool]:
        sources, whole = source_state(tmp_path, "1"), project_state(tmp_path, "1")
        assert sources.commit == whole.commit is not None
        return sources.dirty, whole.dirty

    assert dirty() == (False, False)
    (tmp_path / "inventory/fleet").mkdir()
    (tmp_path / "inventory/fleet/hosts.yml").write_text("1", encoding="utf-8")
    assert dirty() == (False, True)
    (tmp_path / "inventory/lab/hosts.yml").write_text("2", encoding="utf-8")
    assert dirty() == (False, True)
    for name in ("Dockerfiles/images.yml", "inventory.py", "Dockerfiles/new"):
        (tmp_path / name).write_text("2", encoding="utf-8")
        assert dirty() == (True, True), name
        (tmp_path / name).unlink()
        git(tmp_path, "checkout", "--", "Dockerfiles", "inventory.py")


@pytest.fixture
def git_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in git's place."""

    def make(script: str) -> None:
        program = tmp_path / "bin" / "git"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return make


@pytest.mark.parametrize(
    ("script", "commit"),
    [
        ("sleep 60", None),
        (f'case "$*" in *rev-parse*) echo {"a" * 40};; *) sleep 60;; esac', "a" * 40),
    ],
    ids=["no answer at all", "a slow status"],
)
def test_a_slow_git_costs_no_record(
    tmp_path: Path, git_that: Callable[[str], None], script: str, commit: str | None
) -> None:
    git_that(script)
    state = project_state(tmp_path, "1", timeout_s=0.3)
    assert (state.commit, state.dirty) == (commit, True)
    assert "no answer within 0.3 s" in state.problem
    assert state.recorded() == {"version": "1", "commit": commit, "dirty": True}


def test_a_machine_without_git_costs_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    state = project_state(tmp_path, "1")
    assert (state.commit, state.dirty) == (None, True)
    assert state.problem


def test_a_git_that_cannot_be_run_costs_no_record(
    tmp_path: Path, git_that: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    git_that("")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin" / "git").write_text("\0neither script nor program", encoding="utf-8")
    state = project_state(tmp_path, "1")
    assert (state.commit, state.dirty) == (None, True)
    assert state.problem

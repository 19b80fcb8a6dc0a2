"""The environment of the engine's modules: made once, refused by name, judged by its stamp. pip is a stand-in here."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.cli.pytest_command import make_engine_environment
from trispark.engine_api import environment as under_test
from trispark.engine_api.environment import LOCK, STAND_INS, TORCH_LOCK, EngineEnvironment
from trispark.engine_api.importing import import_release
from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Outcome


class Scripted(LocalMachine):
    """Makes venvs and installs without doing so; `fails` is the lock that pip does not get."""

    def __init__(self, fails: str = "", stdout: str = "", python: str | None = None) -> None:
        self.fails = fails
        self.stdout = stdout
        self.python = python
        self.ran: list[list[str]] = []

    def which(self, name: str) -> str | None:
        return self.python

    def run(self, argv: Sequence[str], **_: Any) -> Outcome:
        self.ran.append(list(argv))
        if "venv" in argv:
            python = Path(argv[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        lock = next((word for word in argv if word.startswith("--requirement=")), "")
        if self.fails and lock.endswith(self.fails):
            return Outcome(1, "", "WARNING: x\nERROR: No matching distribution found for torch==2.13.0+cpu\n")
        return Outcome(0, self.stdout)

    @property
    def locks(self) -> list[str]:
        return [
            Path(word.partition("=")[2]).name for argv in self.ran for word in argv if word.startswith("--requirement=")
        ]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one release, whose wheel is there already."""
    monkeypatch.setattr(under_test, "PYTHON", sys.version_info[:2])
    kept = tmp_path / ".trispark/engine/wheels"
    kept.mkdir(parents=True)
    with zipfile.ZipFile(kept / "sglang-1.2.3-py3.whl", "w") as archive:
        archive.writestr("sglang/__init__.py", "VERSION = 1\n")
        archive.writestr("sglang/fast.so", "a library")
    digest = hashlib.sha256((kept / "sglang-1.2.3-py3.whl").read_bytes()).hexdigest()
    wheel = {"version": "1.2.3", "file": "sglang-1.2.3-py3.whl", "sha256": digest, "python": "3.12", "platform": "any"}
    builds = {"sglang==1.2.3": {"title": "a release", "wheel": wheel}}
    told = {"schema_version": 1, "engine": "sglang", "builds": builds, "adapters": {}}
    for name, text in (("experiments/engine_builds.yml", yaml.safe_dump(told)), (LOCK, "a"), (TORCH_LOCK, "b")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def silent(line: str) -> None:
    """Says nothing."""


def test_it_is_made_once_and_torch_is_asked_for_first(root: Path) -> None:
    machine = Scripted()
    made = EngineEnvironment(root, silent, machine)
    assert not made.ready()
    assert [made.make(), made.make()] == [True, False]
    assert machine.locks == [Path(TORCH_LOCK).name, Path(LOCK).name]
    assert all("--require-hashes" in argv and "--no-deps" in argv for argv in machine.ran if "install" in argv)
    (release,) = made.releases().values()
    assert [path.name for path in (release / "sglang").iterdir()] == ["__init__.py"]
    assert EngineEnvironment(root, silent, machine).ready()


@pytest.mark.parametrize("name", [LOCK, TORCH_LOCK])
def test_another_lock_makes_it_anew(root: Path, name: str) -> None:
    made = EngineEnvironment(root, silent, Scripted())
    made.make()
    (root / name).write_text("other", encoding="utf-8")
    assert not made.ready()
    assert made.make()


def test_an_interrupted_setup_is_not_complete(root: Path) -> None:
    made = EngineEnvironment(root, silent, Scripted())
    made.make()
    (root / LOCK).write_text("other", encoding="utf-8")
    with pytest.raises(TrisparkError):
        EngineEnvironment(root, silent, Scripted(fails="adapters-engine.txt")).make()
    (root / LOCK).write_text("a", encoding="utf-8")
    assert not made.ready()  # the stamp went first


@pytest.mark.parametrize(
    ("fails", "error_id"),
    [("adapters-torch.txt", "TS-ADAPTERS-TORCH"), ("adapters-engine.txt", "TS-ADAPTERS-PACKAGES")],
)
def test_what_cannot_be_had_is_named_and_kept(root: Path, fails: str, error_id: str) -> None:
    machine = Scripted(fails=fails)
    made = EngineEnvironment(root, silent, machine)
    with pytest.raises(TrisparkError) as caught:
        made.make()
    assert caught.value.id == error_id
    assert caught.value.observed == "No matching distribution found for torch==2.13.0+cpu"
    assert made.why_not().startswith(f"{error_id}: ")
    assert not made.ready()
    if error_id == "TS-ADAPTERS-TORCH":
        assert machine.locks == [Path(TORCH_LOCK).name]  # nothing else was tried
    EngineEnvironment(root, silent, Scripted()).make()
    assert "./trispark test does" in made.why_not()


def test_a_full_disk_is_named_and_does_not_end_the_tests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(archive: zipfile.ZipFile, path: Path, names: list[str]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    made = EngineEnvironment(root, silent, Scripted())
    with pytest.raises(TrisparkError) as caught:
        made.make()
    assert (caught.value.id, caught.value.observed) == ("TS-ADAPTERS-PLACE", "No space left on device")
    assert not made.ready()


def test_the_test_verb_goes_on_without_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "LocalMachine", lambda: Scripted(fails="adapters-torch.txt"))
    said: list[str] = []
    assert not make_engine_environment(root, said.append)
    assert said[-1].startswith("tests on the engine's own modules are skipped: TS-ADAPTERS-TORCH: ")


@pytest.mark.parametrize("python", [None, "/usr/bin/python9.9"])
def test_another_python_is_looked_for(root: Path, python: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "PYTHON", (9, 9))
    machine = Scripted(python=python)
    made = EngineEnvironment(root, silent, machine)
    if python is None:
        with pytest.raises(TrisparkError) as caught:
            made.make()
        assert (caught.value.id, caught.value.expected.split()[0]) == ("TS-ADAPTERS-PYTHON", "python9.9")
    else:
        made.make()
        assert machine.ran[1][0] == python


def test_its_processes_see_the_release_and_no_switch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_SOURCE", "/model")
    made = EngineEnvironment(root, silent, Scripted())
    environ = made.environ("1.2.3", Path("/first"))
    assert environ["PYTHONPATH"].split(":") == ["/first", str(made.releases()["1.2.3"]), str(STAND_INS)]
    assert [name for name in environ if name.startswith(("DSV41_", "SGLANG_"))] == []


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ({"bound": {"a": 2, "b": 1}, "refused": {}}, {}),
        ({"bound": {"a": 2, "b": 0}, "refused": {}}, {"b": "none of its hooks was installed"}),
        ({"bound": {"a": 1, "b": 0}, "refused": {"b": "TS-ADAPTER-SYMBOL: gone"}}, {"b": "TS-ADAPTER-SYMBOL: gone"}),
        ({"bound": {"a": 1, "b": 1}, "refused": {"b": "its second hook"}}, {"b": "its second hook"}),
    ],
)
def test_what_did_not_bind(root: Path, answer: dict[str, Any], refused: dict[str, str]) -> None:
    machine = Scripted(stdout=f"a line of the engine\n{json.dumps(answer)}\n")
    made = EngineEnvironment(root, silent, machine)
    assert import_release(made, "1.2.3", ["a", "b"], machine) == refused
    assert machine.ran[0][:2] == ["env", "-i"]
    assert machine.ran[0][-2:] == ["a", "b"]


@pytest.mark.parametrize("stdout", ["", "no JSON\n", "{}\n"])
def test_a_process_without_an_answer_is_an_error(root: Path, stdout: str) -> None:
    machine = Scripted(stdout=stdout)
    with pytest.raises(TrisparkError) as caught:
        import_release(EngineEnvironment(root, silent, machine), "1.2.3", ["a"], machine)
    assert caught.value.id == "TS-ADAPTERS-IMPORT"

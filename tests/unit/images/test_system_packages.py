"""System packages as apt's lists on a machine have them; a lab's drift warns, a release's fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Outcome
from trispark.images.declaration import Declaration
from trispark.images.lock_check import Sources, check, passed, version_drift
from trispark.images.lock_file import load_lock
from trispark.images.lock_model import DebEntry, LockFile, VersionsEntry
from trispark.images.lock_update import update
from trispark.images.system_packages import Package, SystemPackages
from trispark.images.wheel_cache import WheelCache
from trispark.plainyaml import check_model

SHOW = "Package: g++\nVersion: 4:12.2.0-3\nFilename: pool/g++.deb\nSize: 1356\nSHA256: " + "a" * 64 + "\n"
POLICY = """python3:
  Installed: (none)
  Candidate: 3.11.2-1+b1
  Version table:
     3.11.2-1+b1 500
libstdc++6:
  Installed: 12.2.0-14
  Candidate: 12.2.0-14+deb12u1
  Version table:
     12.2.0-14+deb12u1 500
gone:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


class Apt(LocalMachine):
    """A machine whose apt has these answers."""

    def __init__(self, codename: str = "bookworm", show: str = SHOW, policy: str = POLICY, dpkg: str = "amd64") -> None:
        self.codename, self.show, self.policy, self.dpkg = codename, show, policy, dpkg
        self.asked: list[list[str]] = []

    def read_text(self, path: Path) -> str:
        return f'ID=debian\nVERSION_CODENAME="{self.codename}"\n'

    def run(self, argv: Sequence[str], **_: Any) -> Outcome:
        self.asked.append(list(argv))
        text = {"show": self.show, "policy": self.policy, "--print-architecture": self.dpkg}[argv[1]]
        return Outcome(0 if text else 100, text)


def test_a_package_is_read_with_version_hash_and_size() -> None:
    apt = Apt()
    assert SystemPackages(apt).package("g++", "bookworm", "arm64") == Package("4:12.2.0-3", "a" * 64, 1356)
    assert apt.asked[-1][-1] == "g++:arm64"
    assert SystemPackages(Apt(show="")).package("g++", "bookworm", "arm64") is None
    assert SystemPackages(Apt(show=SHOW.replace("SHA256", "MD5sum"))).package("g++", "bookworm", "arm64") is None
    assert SystemPackages(apt).package("g++", "noble", "arm64") is None, "other lists are not here"


def test_versions_are_those_that_would_be_installed() -> None:
    names = ["python3", "libstdc++6", "gone"]
    found = SystemPackages(Apt()).versions(names, "bookworm", "amd64")
    assert found == {"python3": "3.11.2-1+b1", "libstdc++6": "12.2.0-14+deb12u1"}
    assert SystemPackages(Apt()).versions(names, "bookworm", "arm64") is None
    assert SystemPackages(Apt()).versions(names, "noble", "amd64") is None
    assert SystemPackages(Apt(policy="")).versions(names, "bookworm", "amd64") is None


class Project:
    """Inputs of apt alone, in a tree of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "Dockerfiles").mkdir()
        (root / "Dockerfiles/bases.yml").write_text("bases: {lab-base: {packages: [python3, libstdc++6]}}\n")
        deb = {"kind": "deb", "package": "g++", "suite": "bookworm", "architecture": "amd64"}
        versions = {"kind": "versions", "base": "lab-base", "suite": "bookworm", "architecture": "amd64"}
        image = {"title": "t", "dockerfile": "x/Dockerfile", "user": "1000", "made_by": "lab"}
        variant = {"base": "lab", "inputs": ["deb"], "available": True}
        data = {
            "schema_version": 1,
            "inputs": {"deb": deb, "lab": versions},
            "images": {"x": image | {"variants": {"amd64": variant}}},
        }
        self.declaration = check_model(Declaration, data, "x", "TS-IMAGES-SCHEMA")

    def sources(self, apt: Apt) -> Sources:
        return Sources(self.root, WheelCache(self.root, lambda _: None), SystemPackages(apt), None, None)

    def lock(self, apt: Apt) -> LockFile:
        for name in ("deb", "lab"):
            update(self.root, self.declaration, name, self.sources(apt))
        return load_lock(self.root)

    def checked(self, apt: Apt) -> tuple[dict[str, str], bool]:
        found = list(check(load_lock(self.root), {}, self.sources(apt)))
        return {each.name: each.status for each in found}, passed(found)


def test_a_release_must_match_and_a_lab_may_drift(tmp_path: Path) -> None:
    project = Project(tmp_path)
    lock = project.lock(Apt())
    deb, lab = lock.entries["deb"], lock.entries["lab"]
    assert isinstance(deb, DebEntry)
    assert (deb.version, deb.sha256, deb.size) == ("4:12.2.0-3", "a" * 64, 1356)
    assert isinstance(lab, VersionsEntry)
    assert lab.packages == {"libstdc++6": "12.2.0-14+deb12u1", "python3": "3.11.2-1+b1"}
    assert project.checked(Apt()) == ({"deb": "ok", "lab": "ok"}, True)
    assert project.checked(Apt(policy=POLICY.replace("b1", "b2"))) == ({"deb": "ok", "lab": "drift"}, True)
    assert project.checked(Apt(show=SHOW.replace("aaaa", "bbbb"))) == ({"deb": "MISMATCH", "lab": "ok"}, False)
    assert project.checked(Apt(show=SHOW.replace("12.2", "12.3"))) == ({"deb": "MISMATCH", "lab": "ok"}, False)
    assert project.checked(Apt("noble")) == ({"deb": "unreachable", "lab": "unreachable"}, False)


def test_drift_names_each_package(tmp_path: Path) -> None:
    lab = Project(tmp_path).lock(Apt()).entries["lab"]
    assert isinstance(lab, VersionsEntry)
    observed = dict(lab.packages or {})
    assert version_drift(lab, observed) == []
    assert version_drift(lab, observed | {"python3": "3.13"}) == ["python3 3.11.2-1+b1 was recorded, 3.13 is there"]
    del observed["python3"]
    assert version_drift(lab, observed) == ["python3 3.11.2-1+b1 was recorded, none is there"]


@pytest.mark.parametrize("apt", [Apt("trixie"), Apt(dpkg="arm64"), Apt(policy=POLICY.replace("python3:", "other:"))])
def test_versions_are_recorded_whole_or_not_at_all(tmp_path: Path, apt: Apt) -> None:
    project = Project(tmp_path)
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declaration, "lab", project.sources(apt))
    assert caught.value.id == "TS-IMAGES-SOURCE"
    assert not (tmp_path / "Dockerfiles/images.lock.yml").exists()

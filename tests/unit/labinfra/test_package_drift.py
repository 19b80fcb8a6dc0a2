"""`lab up` says which packages have other versions than the lock recorded, from the cached tars, read once."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from trispark.images import lock_file, root_inventory
from trispark.images.lock_file import write_lock
from trispark.images.lock_model import LockFile
from trispark.lab.bases import NAMES, Recipe, base_tar
from trispark.lab.layout import Paths
from trispark.lab.package_drift import KEPT, MOST_NAMED, drift_line

RECIPES = {name: Recipe(name, "0123456789ab", "bookworm", "", ()) for name in NAMES}
BASE = {"python3": "3.11.2-1", "libc6": "2.36-9"}
NODE = {"docker.io": "20.10.24", "sudo": "1.9.13", "rsync": "3.2", "tini": "0.19", "mount": "2.38", "procps": "4.0"}
PREFIX = "packages of the lab's images have other versions than recorded: "


def bootstrapped(paths: Paths, name: str, packages: dict[str, str], *, state: str = "install ok installed") -> Path:
    """A tar as mmdebstrap makes it, as far as dpkg's status goes."""
    stanzas = [
        f"Package: {each}\nStatus: {state}\nArchitecture: amd64\nVersion: {version}\nDescription: x\n Version: 0\n"
        for each, version in packages.items()
    ]
    data = "\n".join(stanzas).encode()
    tar = base_tar(paths, RECIPES[name])
    with tarfile.open(tar, "w") as written:
        for member, content in (("./etc/os-release", b"ID=debian\n"), ("./var/lib/dpkg/status", data)):
            header = tarfile.TarInfo(member)
            header.size = len(content)
            written.addfile(header, io.BytesIO(content))
    return tar


def record(paths: Paths, *, architecture: str = "amd64", **packages: dict[str, str]) -> None:
    """The lock; `lab_base` is the entry lab-base."""
    entries = {
        name.replace("_", "-"): {
            "kind": "versions",
            "base": name.replace("_", "-"),
            "suite": "bookworm",
            "architecture": architecture,
            "packages": versions,
        }
        for name, versions in packages.items()
    }
    write_lock(paths.repo, LockFile.model_validate({"schema_version": 1, "entries": entries}))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(tmp_path)
    found.cache.mkdir(parents=True)
    (tmp_path / "Dockerfiles").mkdir()
    bootstrapped(found, "lab-base", BASE)
    bootstrapped(found, "lab-node", {**BASE, **NODE})
    record(found, lab_base={"python3": BASE["python3"]}, lab_node=NODE)
    return found


def told(paths: Paths, machine: str = "x86_64") -> str | None:
    return drift_line(paths, RECIPES, machine)


def test_what_is_as_recorded_is_not_told(paths: Paths) -> None:
    assert told(paths) is None
    assert told(paths) is None, "the kept answer, too"


def test_another_version_and_a_package_that_is_gone_are_named(paths: Paths) -> None:
    bootstrapped(paths, "lab-node", {**BASE, **NODE, "sudo": "1.9.14"} | {"rsync": "3.3"})
    expected = PREFIX + (
        "rsync 3.2 was recorded, 3.3 is there; sudo 1.9.13 was recorded, 1.9.14 is there; "
        "see ./trispark images lock --check lab-node"
    )
    assert told(paths) == expected
    assert told(paths) == expected
    bootstrapped(paths, "lab-node", {name: version for name, version in NODE.items() if name != "tini"})
    line = told(paths)
    assert line is not None
    assert "tini 0.19 was recorded, none is there" in line


def test_one_package_of_two_bases_is_told_once(paths: Paths) -> None:
    record(paths, lab_base={"libc6": "2.35"}, lab_node={"libc6": "2.35"})
    assert told(paths) == PREFIX + (
        "libc6 2.35 was recorded, 2.36-9 is there; see ./trispark images lock --check lab-base lab-node"
    )


def test_at_most_five_are_named(paths: Paths) -> None:
    record(paths, lab_node=dict.fromkeys(NODE, "0"))
    line = told(paths)
    assert line is not None
    assert len(NODE) == MOST_NAMED + 1
    assert line.count(" was recorded, ") == MOST_NAMED
    assert "; and 1 more; see " in line
    assert "\n" not in line


def test_a_removed_package_whose_settings_stay_is_not_there(paths: Paths) -> None:
    bootstrapped(paths, "lab-node", NODE, state="deinstall ok config-files")
    line = told(paths)
    assert line is not None
    assert "docker.io 20.10.24 was recorded, none is there" in line


def test_a_tar_is_read_once_and_again_when_it_or_the_lock_changed(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab's second start must not read 400 MB, nor parse the lock."""
    read: list[str] = []
    true_inventory, true_lock = root_inventory.inventory_of, lock_file.load_lock
    monkeypatch.setattr(
        root_inventory, "inventory_of", lambda *tars: (read.append(tars[0].name), true_inventory(*tars))[1]
    )
    monkeypatch.setattr(lock_file, "load_lock", lambda root: (read.append("lock"), true_lock(root))[1])
    both = ["lock", *(base_tar(paths, RECIPES[name]).name for name in NAMES)]
    for wanted in (both, []):
        told(paths)
        assert read == wanted
        read.clear()
    record(paths, lab_base={"python3": "4"}, lab_node=NODE)
    line = told(paths)
    assert line is not None
    assert "python3 4 was recorded" in line
    assert read == both
    read.clear()
    tar = base_tar(paths, RECIPES["lab-base"])
    stat = tar.stat()
    os.utime(tar, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    told(paths)
    assert read == both


@pytest.mark.parametrize("text", ["", "{", "[]", '{"of": 1}', "null", '{"of": "x", "drifts": []}'])
def test_a_kept_answer_that_is_none_is_made_again(paths: Paths, text: str) -> None:
    record(paths, lab_base={"python3": "4"})
    first = told(paths)
    (paths.cache / KEPT).write_text(text)
    assert first is not None
    assert told(paths) == first


def test_other_architectures_and_bases_that_were_pulled_are_not_compared(paths: Paths) -> None:
    record(paths, lab_base={"python3": "4"}, architecture="arm64")
    assert told(paths) is None
    assert told(paths, "aarch64") is not None, "not the kept answer of another machine"
    for name in NAMES:
        base_tar(paths, RECIPES[name]).unlink()
    assert told(paths, "aarch64") is None


def test_what_cannot_be_read_is_said_and_hinders_nothing(paths: Paths) -> None:
    base_tar(paths, RECIPES["lab-node"]).write_bytes(b"no tar" * 200)
    assert told(paths) == (
        "packages of the lab's images cannot be compared with Dockerfiles/images.lock.yml: "
        "TS-PROVENANCE-ROOT: the image's root file system cannot be read"
    )
    lock = paths.repo / "Dockerfiles/images.lock.yml"
    lock.unlink()
    line = told(paths)
    assert line is not None
    assert "cannot be compared" in line
    lock.symlink_to("/proc/self/mem")  # opens, and cannot be read: by root neither
    line = told(paths)
    assert line is not None
    assert "images.lock.yml: [Errno 5] " in line


def test_a_machine_of_another_architecture_has_nothing_to_compare(paths: Paths) -> None:
    record(paths, lab_base={"python3": "4"})
    assert told(paths, "riscv64") is None

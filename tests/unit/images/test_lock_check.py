"""The lock against an index, a registry and the disk: what matches is ok, and nothing else is."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from file_index import FileIndex, serving
from typer.testing import CliRunner

from trispark.cli import images_lock
from trispark.cli.app import app
from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine
from trispark.images.declaration import Declaration, load_declaration, stale
from trispark.images.image_members import ImageMembers
from trispark.images.lock_check import Sources, check, passed
from trispark.images.lock_file import LOCK, load_lock, write_lock
from trispark.images.lock_model import WheelEntry, WheelInput
from trispark.images.lock_update import update
from trispark.images.package_index import PackageIndex, UrllibHttp, fits
from trispark.images.system_packages import SystemPackages
from trispark.images.tree_hash import tree_hash
from trispark.images.wheel_cache import BUSY_S, WheelCache

NAME = "tiny_kernel-1.2-cp310-abi3-manylinux2014_aarch64.whl"
CONTENT = bytes(range(256)) * 9000
"""2.2 MiB: more than one piece."""
REASON = "nobody has it"
HTTP = UrllibHttp(10)
BUILT = {"title": "t", "dockerfile": "x/Dockerfile", "user": "1000"}


def manifest(value: dict[str, Any]) -> tuple[str, bytes]:
    body = json.dumps(value).encode()
    return "sha256:" + hashlib.sha256(body).hexdigest(), body


CONFIG = "sha256:" + "c" * 64
ARM, ARM_BODY = manifest({"schemaVersion": 2, "config": {"digest": CONFIG}})
INDEX, INDEX_BODY = manifest(
    {
        "manifests": [
            {"digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": "sha256:" + "1" * 64, "platform": {"os": "unknown", "architecture": "arm64"}},
            {"digest": ARM, "platform": {"os": "linux", "architecture": "arm64"}},
        ]
    }
)


@pytest.fixture
def index() -> Iterator[FileIndex]:
    with serving(FileIndex()) as served:
        served.wheel("tiny-kernel", NAME, CONTENT)
        served.wheel("tiny-kernel", NAME.replace("aarch64", "x86_64"), b"x")
        served.blobs[f"/v2/a/engine/manifests/{INDEX}"] = ("application/vnd.oci.image.index.v1+json", INDEX_BODY)
        served.blobs[f"/v2/a/engine/manifests/{ARM}"] = ("application/vnd.oci.image.manifest.v1+json", ARM_BODY)
        yield served


class Project:
    """A tree with a declaration of its own."""

    def __init__(self, root: Path, index: FileIndex) -> None:
        self.root = root
        self.index = index
        (root / "Dockerfiles").mkdir()
        self.inputs: dict[str, dict[str, Any]] = {
            "base": {
                "kind": "image",
                "repository": f"127.0.0.1:{index.port}/a/engine",
                "index": INDEX,
                "architecture": "arm64",
            },
            "kernel": {"kind": "wheel", "project": "tiny-kernel", "version": "1.2", "architecture": "arm64"},
            "lost": {"kind": "file", "file": "lost.py", "unresolved": REASON},
            "own": {"kind": "file", "file": "own.txt", "path": "own.txt"},
        }
        (root / "own.txt").write_text("ours\n")

    def declare(self) -> Declaration:
        inputs = sorted(set(self.inputs) - {"base"})
        variant = {"base": "base", "inputs": inputs, "available": False, "reason": "x"}
        images = {"engine": BUILT | {"variants": {"arm64": variant}}}
        data = {"schema_version": 1, "inputs": self.inputs, "images": images}
        (self.root / "Dockerfiles/images.yml").write_text(yaml.safe_dump(data))
        return load_declaration(self.root)

    def sources(self, *, offline: bool = False, download: bool = False, address: str | None = None) -> Sources:
        return Sources(
            root=self.root,
            cache=WheelCache(self.root, lambda _: None),
            system=SystemPackages(),
            index=None if offline else PackageIndex(address or self.index.address, HTTP),
            members=None if offline else ImageMembers(HTTP),
            download=download,
        )

    def lock_all(self) -> None:
        declaration = self.declare()
        for name in self.inputs:
            update(self.root, declaration, name, self.sources())

    def checked(self, **how: Any) -> tuple[dict[str, tuple[str, str]], bool]:
        lock, declaration = load_lock(self.root), load_declaration(self.root)
        found = list(check(lock, stale(declaration, lock), self.sources(**how)))
        return {each.name: (each.status, each.how) for each in found}, passed(found)


@pytest.fixture
def project(tmp_path: Path, index: FileIndex) -> Project:
    made = Project(tmp_path, index)
    made.lock_all()
    return made


def test_all_that_has_a_hash_matches_and_what_has_none_is_never_ok(project: Project) -> None:
    found, ok = project.checked()
    assert ok
    assert {name: status for name, (status, _) in found.items()} == {
        "base": "ok",
        "kernel": "ok",
        "lost": "UNRESOLVED",
        "own": "ok",
    }
    entries = load_lock(project.root).entries
    assert entries["base"].model_dump()["digest"] == ARM
    assert entries["base"].model_dump()["config"] == CONFIG
    assert entries["kernel"].model_dump()["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert entries["kernel"].model_dump()["size"] == len(CONTENT)
    assert entries["lost"].model_dump()["unresolved"] == REASON


@pytest.mark.parametrize("html", [False, True])
def test_another_hash_on_the_index_is_a_mismatch(project: Project, html: bool) -> None:
    project.index.html = html
    assert project.checked()[0]["kernel"][0] == "ok"
    project.index.stated[NAME] = "f" * 64
    found, ok = project.checked()
    assert not ok
    assert found["kernel"][0] == "MISMATCH"
    assert "f" * 64 in found["kernel"][1]
    assert found["own"][0] == "ok", "the others are judged all the same"


def test_an_index_that_states_no_hash_proves_nothing(project: Project) -> None:
    project.index.stated[NAME] = None
    found, ok = project.checked()
    assert (found["kernel"][0], ok) == ("unreachable", False)
    assert project.checked(download=True)[0]["kernel"][0] == "ok", "the file itself does"


def test_a_file_that_was_taken_back_is_a_mismatch(project: Project) -> None:
    del project.index.wheels["tiny-kernel"][NAME]
    found, ok = project.checked()
    assert (found["kernel"][0], ok) == ("MISMATCH", False)


@pytest.mark.parametrize("download", [False, True])
def test_nobody_answers(project: Project, download: bool) -> None:
    address = "http://127.0.0.1:1/simple"
    found, ok = project.checked(address=address, download=download)
    assert (found["kernel"][0], ok) == ("unreachable", False)
    assert "127.0.0.1" not in found["kernel"][1]
    assert found["own"][0] == "ok"


def test_offline_nothing_is_asked_and_what_is_not_here_is_not_ok(project: Project) -> None:
    project.index.asked.clear()
    found, ok = project.checked(offline=True)
    assert project.index.asked == []
    assert {name: status for name, (status, _) in found.items()} == {
        "base": "unreachable",
        "kernel": "unreachable",
        "lost": "UNRESOLVED",
        "own": "ok",
    }
    assert not ok
    project.checked(download=True)
    assert project.checked(offline=True)[0]["kernel"][0] == "ok", "the kept file is hashed"
    kept = project.sources().cache.folder / NAME
    kept.write_bytes(CONTENT[:-1] + b"!")
    assert project.checked(offline=True)[0]["kernel"][0] == "unreachable"


def test_a_download_is_hashed_kept_and_not_made_again(project: Project) -> None:
    found, ok = project.checked(download=True)
    assert ok
    assert f"{len(CONTENT)} of them now" in found["kernel"][1]
    fetched = [path for path, _ in project.index.asked if path.startswith("/files")]
    assert project.checked(download=True)[0]["kernel"] == ("ok", f"kept before, {len(CONTENT)} bytes hashed")
    assert [path for path, _ in project.index.asked if path.startswith("/files")] == fetched


def test_a_download_with_another_content_is_a_mismatch_and_is_not_kept(project: Project) -> None:
    project.index.wheels["tiny-kernel"][NAME] = CONTENT[:-1] + b"!"
    project.index.stated[NAME] = hashlib.sha256(CONTENT).hexdigest()
    assert project.checked()[0]["kernel"][0] == "ok", "the index lies, and only a download sees it"
    found, ok = project.checked(download=True)
    assert (found["kernel"][0], ok) == ("MISMATCH", False)
    assert sorted(path.name for path in project.sources().cache.folder.iterdir()) == ["lock"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_ended(project: Project, ranges: bool) -> None:
    project.index.ranges = ranges
    project.index.cut[NAME] = 1_500_000
    assert project.checked(download=True)[0]["kernel"][0] == "ok"
    wanted = [headers.get("Range") for path, headers in project.index.asked if path.startswith("/files")]
    assert wanted[0] is None
    assert wanted[1] is not None
    start = int(wanted[1].removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= 1_500_000


def test_what_an_older_download_left_is_gone_on_with(project: Project) -> None:
    folder = project.sources().cache.folder
    folder.mkdir(parents=True)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (folder / f"{NAME}.{sha256[:12]}.partial").write_bytes(CONTENT[:1_000_000])
    found, _ = project.checked(download=True)
    assert f"{len(CONTENT) - 1_000_000} of them now" in found["kernel"][1]


def test_a_left_over_of_other_bytes_is_not_believed(project: Project) -> None:
    folder = project.sources().cache.folder
    folder.mkdir(parents=True)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (folder / f"{NAME}.{sha256[:12]}.partial").write_bytes(b"!" * 1_000_000)
    assert project.checked(download=True)[0]["kernel"][0] == "MISMATCH"
    assert project.checked(download=True)[0]["kernel"][0] == "ok", "and it does not stay"


def test_more_bytes_than_are_locked_are_not_taken(project: Project) -> None:
    project.index.wheels["tiny-kernel"][NAME] = CONTENT + b"!" * 4_000_000
    found, ok = project.checked(download=True)
    assert (found["kernel"][0], ok) == ("unreachable", False)
    assert "more than" in found["kernel"][1]
    assert sorted(path.name for path in project.sources().cache.folder.iterdir()) == ["lock"]


def test_a_full_disk_is_said_before_anything_is_fetched(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    found, ok = project.checked(download=True)
    assert not ok
    assert found["kernel"][1].startswith("TS-IMAGES-DISK")
    assert not [path for path, _ in project.index.asked if path.startswith("/files")]


class QuickClock(LocalMachine):
    """Waits without waiting."""

    passed = 0.0

    def now(self) -> float:
        return self.passed

    def pause(self, seconds: float) -> None:
        self.passed += seconds


def test_a_fetch_that_another_process_holds_up_is_named_and_fetches_nothing(project: Project) -> None:
    said: list[str] = []
    clock = QuickClock()
    sources = project.sources(download=True)
    sources.cache = WheelCache(project.root, said.append, clock)
    folder = sources.cache.folder
    folder.mkdir(parents=True)
    lock = load_lock(project.root)
    with (folder / "lock").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("4711\n")
        other.flush()
        project.index.asked.clear()
        found = {each.name: each for each in check(lock, {}, sources)}
        assert found["kernel"].status == "unreachable"
        busy = "TS-IMAGES-FETCHING: another fetch of wheels of this checkout is still running, the lock is held by "
        assert found["kernel"].how == f"{busy}process 4711"
        assert len(said) == 1
        assert "process 4711" in said[0]
        assert BUSY_S <= clock.passed < 2 * BUSY_S
        assert not [path for path, _ in project.index.asked if path.startswith(("/files", "/simple"))]
        assert [path.name for path in folder.iterdir()] == ["lock"]
    assert {each.name: each for each in check(lock, {}, sources)}["kernel"].status == "ok"


class SlowClock(LocalMachine):
    """An hour passes between two looks at the clock."""

    hours = 0.0

    def now(self) -> float:
        self.hours += 3600.0
        return self.hours


def test_a_peer_that_is_too_slow_is_given_up_and_gone_on_with(project: Project) -> None:
    sources = project.sources(download=True)
    sources.cache = WheelCache(project.root, lambda _: None, SlowClock())
    entry = load_lock(project.root).entries["kernel"]
    assert isinstance(entry, WheelEntry)
    assert sources.index is not None
    with pytest.raises(TrisparkError) as caught:
        sources.cache.fetch(entry, sources.index)
    assert caught.value.id == "TS-IMAGES-FETCH"
    assert "slower than" in caught.value.observed
    done = project.sources().cache.fetch(entry, sources.index)
    assert done.resumed > 0
    assert done.resumed + done.fetched == len(CONTENT)


@pytest.mark.parametrize(
    ("body", "status"),
    [(INDEX_BODY.replace(b"arm64", b"amd64"), "MISMATCH"), (b"no json", "MISMATCH"), (None, "unreachable")],
)
def test_a_registry_that_gives_another_index_is_a_mismatch(project: Project, body: bytes | None, status: str) -> None:
    path = f"/v2/a/engine/manifests/{INDEX}"
    if body is None:
        del project.index.blobs[path]
    else:
        project.index.blobs[path] = ("application/json", body)
    found, ok = project.checked()
    assert (found["base"][0], ok) == (status, False)
    said = "TS-IMAGES-MANIFEST: a registry gives another manifest than the digest names, sha256:"
    assert found["base"][1].startswith(said) is (status == "MISMATCH")


@pytest.mark.parametrize("odd", ["index", "member"])
def test_another_manifest_than_the_digest_names_is_never_used(project: Project, odd: str) -> None:
    digest, body = (INDEX, INDEX_BODY) if odd == "index" else (ARM, ARM_BODY)
    project.index.blobs[f"/v2/a/engine/manifests/{digest}"] = ("application/json", body + b" ")
    repository = f"127.0.0.1:{project.index.port}/a/engine"
    with pytest.raises(TrisparkError) as caught:
        ImageMembers(HTTP).member(repository, INDEX, "arm64")
    observed = "sha256:" + hashlib.sha256(body + b" ").hexdigest()
    error = caught.value
    assert (error.id, error.where, error.expected, error.observed) == (
        "TS-IMAGES-MANIFEST",
        repository,
        digest,
        observed,
    )


def test_an_anonymous_token_is_asked_for_where_the_registry_wants_one(project: Project) -> None:
    project.index.token = "anonymous-word"
    found, _ = project.checked()
    assert found["base"][0] == "ok"
    project.index.asked.clear()


def test_the_digest_of_another_platform_is_refused(project: Project) -> None:
    project.inputs["base"]["digest"] = "sha256:" + "0" * 64  # of amd64
    declaration = project.declare()
    with pytest.raises(TrisparkError) as caught:
        update(project.root, declaration, "base", project.sources())
    assert caught.value.id == "TS-IMAGES-DIFFERS"
    assert ARM in caught.value.observed
    assert project.checked()[0]["base"][0] == "MISMATCH", "the lock is not what is declared"


def test_an_index_without_that_platform_locks_nothing(project: Project) -> None:
    project.inputs["base"]["architecture"] = "amd64"
    digest, body = manifest({"manifests": [{"digest": ARM, "platform": {"os": "linux", "architecture": "arm64"}}]})
    project.inputs["base"]["index"] = digest
    project.index.blobs[f"/v2/a/engine/manifests/{digest}"] = ("application/json", body)
    with pytest.raises(TrisparkError, match="amd64"):
        project.declare()
    project.inputs["base"] |= {"architecture": "arm64", "index": digest}
    update(project.root, project.declare(), "base", project.sources())
    wrong, wrong_body = manifest({"manifests": []})
    project.inputs["base"]["index"] = wrong
    project.index.blobs[f"/v2/a/engine/manifests/{wrong}"] = ("application/json", wrong_body)
    before = (project.root / LOCK).read_bytes()
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declare(), "base", project.sources())
    assert caught.value.id == "TS-IMAGES-NOT-FOUND"
    assert (project.root / LOCK).read_bytes() == before


def test_stated_digests_are_locked_where_the_registry_is_away_and_said_to_be(project: Project) -> None:
    project.inputs["base"] |= {"repository": "127.0.0.1:1/a/engine", "digest": ARM, "config": CONFIG}
    change = update(project.root, project.declare(), "base", project.sources())
    assert "as it is declared" in change.note
    assert load_lock(project.root).entries["base"].resolved
    assert project.checked()[0]["base"][0] == "unreachable"
    del project.inputs["base"]["digest"]
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declare(), "base", project.sources())
    assert caught.value.id == "TS-IMAGES-NOT-FOUND"


def test_a_new_version_is_locked_by_update_alone(project: Project) -> None:
    new = NAME.replace("1.2", "1.3")
    sha256 = project.index.wheel("tiny-kernel", new, b"new")
    project.inputs["kernel"]["version"] = "1.3"
    declaration = project.declare()
    found, ok = project.checked()
    assert (found["kernel"][0], ok) == ("MISMATCH", False)
    change = update(project.root, declaration, "kernel", project.sources())
    assert f"+ sha256: {sha256}" in list(change.lines)
    assert f"- sha256: {hashlib.sha256(CONTENT).hexdigest()}" in list(change.lines)
    assert project.checked()[1]
    again = update(project.root, declaration, "kernel", project.sources())
    assert list(again.lines) == []


def test_what_is_declared_no_longer_leaves_the_lock(project: Project) -> None:
    del project.inputs["own"]
    declaration = project.declare()
    assert project.checked()[0]["own"][0] == "MISMATCH"
    change = update(project.root, declaration, "own", project.sources())
    assert change.after is None
    assert "own" not in load_lock(project.root).entries
    with pytest.raises(TrisparkError) as caught:
        update(project.root, declaration, "own", project.sources())
    assert caught.value.id == "TS-IMAGES-NAME"


def test_a_copy_of_a_file_resolves_it_and_a_changed_byte_is_seen(project: Project, tmp_path: Path) -> None:
    given = tmp_path / "given.py"
    given.write_text("x = 1\n")
    update(project.root, project.declare(), "lost", project.sources(), given)
    assert project.checked()[0]["lost"][0] == "ok"
    (project.sources().copies / "lost").write_text("x = 2\n")
    assert project.checked()[0]["lost"][0] == "MISMATCH"
    (project.root / "own.txt").write_text("theirs\n")
    assert project.checked()[0]["own"][0] == "MISMATCH"


def test_a_tree_is_locked_from_a_copy(project: Project, tmp_path: Path) -> None:
    project.inputs["tree"] = {
        "kind": "tree",
        "source": "somewhere",
        "commit": "0" * 40,
        "directory": "python",
        "unresolved": REASON,
    }
    update(project.root, project.declare(), "tree", project.sources())
    assert project.checked()[0]["tree"] == ("UNRESOLVED", REASON)
    (tmp_path / "python/pkg/.git").mkdir(parents=True)
    (tmp_path / "python/pkg/a.py").write_text("a")
    update(project.root, project.declare(), "tree", project.sources(), tmp_path / "python")
    assert project.checked()[0]["tree"][0] == "ok"
    assert not (project.sources().copies / "tree/pkg/.git").exists()
    (project.sources().copies / "tree/pkg/b.py").touch()
    assert project.checked()[0]["tree"][0] == "MISMATCH"


@pytest.mark.parametrize("name", ["kernel", "base"])
def test_a_copy_is_for_trees_and_files(project: Project, name: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declare(), name, project.sources(), project.root / "own.txt")
    assert caught.value.id == "TS-IMAGES-SOURCE"


def test_what_the_index_does_not_have_is_not_locked(project: Project) -> None:
    project.inputs["kernel"]["version"] = "9"
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declare(), "kernel", project.sources())
    assert caught.value.id == "TS-IMAGES-NOT-FOUND"
    project.inputs["kernel"]["unresolved"] = REASON
    update(project.root, project.declare(), "kernel", project.sources())
    assert project.checked()[0]["kernel"] == ("UNRESOLVED", REASON)


def test_two_files_that_fit_are_refused(project: Project) -> None:
    project.index.wheel("tiny-kernel", NAME.replace("-cp310", "-1-cp310"), b"build 1")
    with pytest.raises(TrisparkError, match="several files fit") as caught:
        update(project.root, project.declare(), "kernel", project.sources())
    assert caught.value.id == "TS-IMAGES-INDEX"


def other_form(index: FileIndex) -> None:
    index.page = lambda _project: ("application/json", b'{"files": 1}')  # type: ignore[method-assign]


def listed_without_a_name(index: FileIndex) -> None:
    index.page = lambda _project: ("application/json", b'{"files": [{"url": "x"}]}')  # type: ignore[method-assign]


def wants_a_login(index: FileIndex) -> None:
    index.password = "Basic of another user"


@pytest.mark.parametrize(
    ("edit", "observed"),
    [
        (other_form, "tiny-kernel: an answer of another form"),
        (listed_without_a_name, "tiny-kernel: an answer of another form"),
        (wants_a_login, "status 401 for tiny-kernel"),
    ],
)
@pytest.mark.parametrize("download", [False, True])
def test_an_index_that_gives_no_answer_of_use_is_named(
    project: Project, edit: Callable[[FileIndex], None], observed: str, download: bool
) -> None:
    """Not a mismatch: nobody said that the wheel is another one."""
    edit(project.index)
    with pytest.raises(TrisparkError) as caught:
        PackageIndex(project.index.address, HTTP).files("tiny-kernel")
    assert (caught.value.id, caught.value.observed) == ("TS-IMAGES-INDEX", observed)
    assert "127.0.0.1" not in str(caught.value)
    found, ok = project.checked(download=download)
    assert not ok
    assert found["kernel"][0] == "unreachable"
    assert found["kernel"][1].startswith(
        f"TS-IMAGES-INDEX: the package index gives no answer that can be used, {observed}"
    )


@pytest.mark.parametrize(
    ("file", "wanted", "does"),
    [
        ("a_b-1-cp312-cp312-manylinux_2_34_aarch64.whl", {"architecture": "arm64", "python": "cp312"}, True),
        ("A.B-1-cp312-cp312-manylinux_2_34_aarch64.whl", {"architecture": "arm64"}, True),
        ("a_b-1-cp311-cp311-manylinux_2_34_aarch64.whl", {"architecture": "arm64", "python": "cp312"}, False),
        ("a_b-1-cp312-cp312-manylinux_2_34_x86_64.whl", {"architecture": "arm64"}, False),
        ("a_b-1-py3-none-any.whl", {"architecture": "arm64"}, False),
        ("a_b-1-py3-none-any.whl", {"architecture": "any"}, True),
        ("a_b-1.1-py3-none-any.whl", {"architecture": "any"}, False),
        ("a_b-1-cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", {"architecture": "arm64"}, True),
        ("a_b-1-cp312-cp312-macosx_11_0_arm64.whl", {"architecture": "arm64"}, False),
        ("a_b-1-cp312-cp312-win_arm64.whl", {"architecture": "arm64"}, False),
        ("a_b-1.tar.gz", {"architecture": "any"}, False),
        ("a_c-1-py3-none-any.whl", {"architecture": "any"}, False),
    ],
)
def test_which_wheels_fit(file: str, wanted: dict[str, Any], does: bool) -> None:
    assert fits(file, WheelInput(kind="wheel", project="a-b", version="1", **wanted)) is does


def test_a_password_goes_to_its_host_alone_and_into_no_message(project: Project, tmp_path: Path) -> None:
    project.index.password = "Basic " + base64.b64encode(b"me:s3cret").decode()
    address = project.index.address.replace("//", "//me:s3cret@")
    found, _ = project.checked(address=address, download=True)
    assert found["kernel"][0] == "ok"
    denied, _ = project.checked(address=address.replace("s3cret", "wr0ng"))
    assert denied["kernel"][0] == "unreachable"
    for text in (json.dumps(found), json.dumps(denied)):
        assert not any(word in text for word in ("s3cret", "wr0ng", "127.0.0.1"))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()


@pytest.mark.parametrize("how", ["elsewhere", "redirect"])
def test_a_password_is_not_given_to_another_host(project: Project, how: str) -> None:
    project.index.password = "Basic " + base64.b64encode(b"me:s3cret").decode()
    with serving(FileIndex(wheels=project.index.wheels)) as other:
        setattr(project.index, how, other.address.removesuffix("/simple"))
        address = project.index.address.replace("//", "//me:s3cret@")
        assert project.checked(address=address, download=True)[0]["kernel"][0] == "ok"
        assert [path for path, _ in other.asked] == [f"/files/tiny-kernel/{NAME}"]
        assert all("Authorization" not in headers for _, headers in other.asked)


def test_another_image_id_of_the_same_manifest_is_refused(project: Project) -> None:
    lock = load_lock(project.root)
    base = lock.entries["base"].model_copy(update={"config": "sha256:" + "9" * 64})
    write_lock(project.root, lock.model_copy(update={"entries": {**lock.entries, "base": base}}))
    found, ok = project.checked()
    assert (found["base"][0], ok) == ("MISMATCH", False)
    project.inputs["base"]["config"] = "sha256:" + "9" * 64
    with pytest.raises(TrisparkError) as caught:
        update(project.root, project.declare(), "base", project.sources())
    assert caught.value.id == "TS-IMAGES-DIFFERS"


def run(project: Project, monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[int, str]:
    """As a person would, with pip's own way to be told of the index."""
    monkeypatch.setattr(images_lock, "REPO", project.root)
    monkeypatch.setenv("PIP_INDEX_URL", project.index.address)
    done = CliRunner().invoke(app, ["images", "lock", *argv])
    return done.exit_code, done.output


def test_the_verb_says_a_line_an_entry_and_ends_as_it_should(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = run(project, monkeypatch, "--check", "--json")
    assert status == 0
    lines = text.splitlines()
    assert lines[0] == "images: no site, no node"
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["ok", "base:"],
        ["ok", "kernel:"],
        ["UNRESOLVED", "lost:"],
        ["ok", "own:"],
    ]
    answer = json.loads(lines[-1])
    assert answer["ok"] is True
    assert answer["counts"] == {"UNRESOLVED": 1, "ok": 3}
    assert answer["entries"]["lost"]["how"] == REASON
    project.index.stated[NAME] = "0" * 64
    status, text = run(project, monkeypatch, "--check")
    assert status == 1
    assert "MISMATCH    kernel" in text
    assert run(project, monkeypatch, "--check", "own")[0] == 0, "of the named ones alone"
    assert run(project, monkeypatch, "--check", "lost")[0] == 0


def test_the_verb_shows_what_an_update_changes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "own.txt").write_text("new\n")
    status, text = run(project, monkeypatch, "--update", "own")
    assert status == 0
    sha256 = hashlib.sha256(b"new\n").hexdigest()
    assert f"  + sha256: {sha256}" in text.splitlines()
    assert "own: as it was" in run(project, monkeypatch, "--update", "own")[1]


@pytest.mark.parametrize(
    ("name", "declared", "way"),
    [
        ("lost", {}, "./trispark images lock --update lost --from FILE, a copy of it"),
        (
            "tree",
            {"kind": "tree", "source": "s", "commit": "0" * 40, "directory": "python"},
            "./trispark images lock --update tree --from DIR, its directory python",
        ),
        (
            "other",
            {"kind": "image", "repository": "127.0.0.1:1/a", "architecture": "arm64"},
            "write its index and digest in Dockerfiles/images.yml, then run this again",
        ),
        (
            "known",
            {"kind": "image", "repository": "127.0.0.1:1/a", "architecture": "arm64", "index": INDEX},
            "run this where its registry answers, or write its digest in Dockerfiles/images.yml",
        ),
        (
            "package",
            {"kind": "deb", "package": "none-such", "suite": "nowhere", "architecture": "arm64"},
            "run this on a machine with the package lists of nowhere for arm64",
        ),
        (
            "wheel",
            {"kind": "wheel", "project": "tiny-kernel", "version": "9", "architecture": "arm64"},
            "correct what Dockerfiles/images.yml says of it, or run this where it is to be had",
        ),
    ],
)
def test_an_update_that_finds_no_hash_fails_and_says_what_to_do(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, declared: dict[str, Any], way: str
) -> None:
    if declared:
        project.inputs[name] = {**declared, "unresolved": REASON}
        project.declare()
    status, _ = run(project, monkeypatch, "--update", name)
    assert status == 1, "the first time too"
    status, text = run(project, monkeypatch, "--update", name, "--json")
    assert status == 1
    assert f"{name}: as it was; still UNRESOLVED: {REASON}" in text.splitlines()
    assert f"  do: {way}" in text
    assert json.loads(text.splitlines()[-1])["unresolved"] == REASON
    assert load_lock(project.root).entries[name].model_dump()["unresolved"] == REASON


def test_an_update_that_follows_what_it_said_ends_well(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "copy").write_text("found\n")
    status, text = run(project, monkeypatch, "--update", "lost", "--from", str(project.root / "copy"), "--json")
    assert (status, json.loads(text.splitlines()[-1])["unresolved"]) == (0, None)
    assert "UNRESOLVED:" not in text
    status, text = run(project, monkeypatch, "--update", "lost")
    assert (status, "lost: changed; now UNRESOLVED" in text) == (1, True), "without the copy it has none again"


def test_an_image_stands_for_what_it_is_made_of(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.root / "Dockerfiles/images.yml"
    data = yaml.safe_load(path.read_text())
    variants = {"arm64": {"base": "base", "inputs": ["own"], "available": False, "reason": "x"}}
    data["images"] |= {"small": BUILT | {"variants": variants}, "kernel": BUILT | {"variants": variants}}
    path.write_text(json.dumps(data))
    status, text = run(project, monkeypatch, "--check", "small", "--json")
    assert (status, "small: the image, by its 2 inputs" in text) == (0, True)
    assert sorted(json.loads(text.splitlines()[-1])["entries"]) == ["base", "own"]
    text = run(project, monkeypatch, "--check", "small", "lost", "--json")[1]
    assert sorted(json.loads(text.splitlines()[-1])["entries"]) == ["base", "lost", "own"]
    text = run(project, monkeypatch, "--check", "kernel", "--json")[1]
    assert sorted(json.loads(text.splitlines()[-1])["entries"]) == ["kernel"], "an input of that name comes first"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--check", "engin"], "for example engine"),
        (["--check", "nothing-like-it"], "an image (engine), or an input that ./trispark images lock --check shows"),
        (["--update", "kernle"], "for example kernel"),
        (["--update", "engine"], "an input of it: base, kernel, lost, own"),
    ],
)
def test_a_name_that_is_none_is_answered_in_a_few_words(
    project: Project, monkeypatch: pytest.MonkeyPatch, argv: list[str], expected: str
) -> None:
    monkeypatch.setattr(images_lock, "REPO", project.root)
    error = CliRunner().invoke(app, ["images", "lock", "--offline", *argv]).exception
    assert isinstance(error, TrisparkError)
    assert (error.id, error.expected) == ("TS-IMAGES-NAME", expected)


@pytest.mark.parametrize(
    "argv",
    [
        ["--update", "own", "--check"],
        ["--update", "own", "kernel"],
        ["--from", "x"],
        ["--offline", "--download"],
        ["--update", "own", "--download"],
    ],
)
def test_a_command_line_that_contradicts_itself_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    assert run(project, monkeypatch, *argv)[0] == 2


def test_an_image_that_is_overstated_fails_the_check(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.root / "Dockerfiles/images.yml"
    data = yaml.safe_load(path.read_text())
    variant = data["images"]["engine"]["variants"]["arm64"]
    variant["available"] = True
    del variant["reason"]
    path.write_text(yaml.safe_dump(data))
    status, text = run(project, monkeypatch, "--check", "own")
    assert status == 1
    assert "TS-IMAGES-OVERSTATED" in text


class TestTreeHash:
    """One name, kind or byte more is another hash; a time or an owner is not."""

    @staticmethod
    def tree(root: Path) -> Path:
        (root / "a").mkdir(parents=True)
        (root / "a/x.py").write_text("x")
        (root / "y.py").write_text("y")
        (root / "link").symlink_to("y.py")
        return root

    @pytest.mark.parametrize(
        "change",
        [
            lambda root: (root / "a/x.py").write_text("X"),
            lambda root: (root / "a/z.py").write_text(""),
            lambda root: (root / "y.py").rename(root / "Y.py"),
            lambda root: (root / "y.py").rename(root / "a/y.py"),
            lambda root: (root / "y.py").chmod(0o755),
            lambda root: (root / "link").unlink(),
            lambda root: ((root / "link").unlink(), (root / "link").symlink_to("a/x.py")),
            lambda root: ((root / "link").unlink(), (root / "link").write_text("y")),
        ],
    )
    def test_every_change_is_seen(self, tmp_path: Path, change: Any) -> None:
        first, second = self.tree(tmp_path / "1"), self.tree(tmp_path / "2")
        assert tree_hash(first) == tree_hash(second)
        change(second)
        assert tree_hash(first) != tree_hash(second)

    def test_what_is_no_file_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        root = self.tree(tmp_path / "1")
        os.mkfifo(root / "a/pipe")
        with pytest.raises(TrisparkError, match=r"TS-IMAGES-TREE.*a/pipe"):
            tree_hash(root)

"""The lock of the images: one text for one content, an entry has a hash or a reason, and nobody else writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trispark.errors import TrisparkError
from trispark.images.declaration import Declaration, load_declaration, overstated, stale, unresolved
from trispark.images.lock_file import LOCK, changing, dump, load_lock, write_lock
from trispark.images.lock_model import ENTRY_OF, LockFile
from trispark.images.lock_update import base_packages
from trispark.plainyaml import check_model

ROOT = Path(__file__).resolve().parents[3]
HEX = "0123456789abcdef"


def hexes(size: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=size, max_size=size)


digests = hexes(64).map("sha256:{}".format)
names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
reasons = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_characters="\x7f"), min_size=1).filter(
    lambda text: all(not 0x7F <= ord(each) <= 0x9F for each in text) and len(text) <= 400
)
versions = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,3}){0,2}(\.post[0-9])?", fullmatch=True)
architectures = st.sampled_from(["amd64", "arm64"])


def mapping(kind: str, fixed: dict[str, Any], hashed: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An entry with its hashes, or with a reason."""
    common = {"kind": st.just(kind), **fixed}
    return st.fixed_dictionaries({**common, **hashed}) | st.fixed_dictionaries({**common, "unresolved": reasons})


entries = st.one_of(
    mapping(
        "image",
        {"repository": st.just("docker.io/a/b"), "architecture": architectures},
        {"index": digests, "digest": digests, "config": digests},
    ),
    mapping(
        "wheel",
        {"project": st.just("some-project"), "version": versions, "architecture": architectures},
        {"file": st.just("some_project-1-py3-none-any.whl"), "sha256": hexes(64), "size": st.integers(1, 2**33)},
    ),
    mapping("tree", {"source": reasons, "commit": hexes(40), "directory": st.just("python")}, {"sha256": hexes(64)}),
    mapping("file", {"file": st.just("a.py")}, {"sha256": hexes(64)}),
    mapping(
        "deb",
        {"package": st.just("g++"), "suite": st.just("noble"), "architecture": architectures},
        {"version": versions, "sha256": hexes(64), "size": st.integers(1, 2**33)},
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("versions"),
            "base": names,
            "suite": st.just("bookworm"),
            "architecture": architectures,
            "packages": st.dictionaries(st.sampled_from(["b-2", "a1", "libc6"]), versions, min_size=1),
        }
    ),
)
locks = st.dictionaries(names, entries, max_size=5)


def lock_of(entries: dict[str, Any]) -> LockFile:
    return check_model(LockFile, {"schema_version": 1, "entries": entries}, "x", "TS-IMAGES-SCHEMA")


@given(locks)
def test_what_is_written_is_what_is_read_and_reads_as_one_text(content: dict[str, Any]) -> None:
    lock = lock_of(content)
    text = dump(lock)
    again = lock_of(yaml.safe_load(text)["entries"])
    assert again == lock
    assert dump(again) == text
    assert dump(lock_of(dict(reversed(content.items())))) == text, "the order of making is not in the text"
    assert list(yaml.safe_load(text)["entries"]) == sorted(content)


@given(entries)
def test_an_entry_has_all_its_hashes_or_a_reason(content: dict[str, Any]) -> None:
    model = ENTRY_OF[content["kind"]]
    made = check_model(model, content, "x", "TS-IMAGES-SCHEMA")
    assert made.resolved is ("unresolved" not in content)
    if "unresolved" in content:
        with pytest.raises(TrisparkError):
            check_model(model, {k: v for k, v in content.items() if k != "unresolved"}, "x", "TS-IMAGES-SCHEMA")
    for key in model._resolved_by if made.resolved else ():
        with pytest.raises(TrisparkError, match="unresolved with a reason"):
            check_model(model, {k: v for k, v in content.items() if k != key}, "x", "TS-IMAGES-SCHEMA")


WHEEL = {"kind": "wheel", "project": "a", "version": "1", "architecture": "any", "file": "a-1-py3-none-any.whl"}


@pytest.mark.parametrize(
    "entry",
    [
        WHEEL,
        WHEEL | {"sha256": "a" * 63},
        WHEEL | {"sha256": "A" * 64},
        WHEEL | {"sha256": "a" * 64, "unresolved": "why"},
        WHEEL | {"sha256": "a" * 64, "size": 0},
        WHEEL | {"sha256": "a" * 64, "size": "1"},
        WHEEL | {"sha256": "a" * 64, "tag": "latest"},
        WHEEL | {"sha256": "a" * 64, "file": "../a-1-py3-none-any.whl"},
        WHEEL | {"sha256": "a" * 64, "version": "1 --index-url x"},
        {"kind": "file", "file": "a", "path": "../a", "sha256": "a" * 64},
        {"kind": "image", "repository": "a/b:latest", "architecture": "arm64", "unresolved": "why"},
        {"kind": "image", "repository": "a/b", "architecture": "any", "unresolved": "why"},
        {"kind": "image", "repository": "a/b", "architecture": "arm64", "index": "latest", "unresolved": "why"},
        {"kind": "versions", "base": "x", "suite": "y", "architecture": "arm64", "packages": {}},
        {"kind": "git", "sha256": "a" * 64},
    ],
    ids=lambda entry: ",".join(f"{key}={value}"[:20] for key, value in entry.items() if key not in WHEEL),
)
def test_an_entry_that_pins_nothing_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(TrisparkError) as caught:
        lock_of({"x": entry})
    assert caught.value.id == "TS-IMAGES-SCHEMA"


def root_with(tmp_path: Path, lock: LockFile) -> Path:
    (tmp_path / "Dockerfiles").mkdir()
    write_lock(tmp_path, lock)
    return tmp_path


@pytest.mark.parametrize("change", [lambda t: t + "\n", lambda t: t.replace("kind: file", "kind:  file"), str.upper])
def test_a_hand_in_the_lock_is_seen(tmp_path: Path, change: Any) -> None:
    root = root_with(tmp_path, lock_of({"x": {"kind": "file", "file": "a", "sha256": "a" * 64}}))
    assert load_lock(root).entries["x"].resolved
    path = root / LOCK
    path.write_text(change(path.read_text()))
    with pytest.raises(TrisparkError) as caught:
        load_lock(root)
    assert caught.value.id in ("TS-IMAGES-HAND", "TS-IMAGES-SCHEMA", "TS-YAML-SYNTAX")


def test_a_write_that_fails_leaves_the_old_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = root_with(tmp_path, lock_of({"x": {"kind": "file", "file": "a", "sha256": "a" * 64}}))
    before = (root / LOCK).read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_lock(root, lock_of({}))
    assert (root / LOCK).read_bytes() == before
    assert [path.name for path in (root / "Dockerfiles").iterdir()] == [Path(LOCK).name]


HOLD = """
import sys
from pathlib import Path
from trispark.images.lock_file import changing
with changing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_updates_at_once_are_refused_by_name(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(TrisparkError) as caught, changing(tmp_path):
            pass
        assert caught.value.id == "TS-IMAGES-BUSY"
        assert str(process.pid) in caught.value.observed
        process.kill()
    with changing(tmp_path):
        pass


class TestShipped:
    """The lock and the declaration of this tree."""

    declaration = load_declaration(ROOT)
    lock = load_lock(ROOT)

    def test_every_input_is_locked_as_it_is_declared(self) -> None:
        assert stale(self.declaration, self.lock) == {}

    def test_no_image_is_called_available_without_its_hashes(self) -> None:
        assert list(overstated(self.declaration, self.lock)) == []
        lacking = {
            (name, architecture): set(unresolved(variant, self.lock))
            for name, image in self.declaration.images.items()
            for architecture, variant in image.variants.items()
            if not variant.available
        }
        assert {"sglang-f80c91a4b", "sm120-mla-overlay"} == lacking["canary", "arm64"]
        assert all(lacking.values()), "what has all its hashes could be built"

    def test_kernel_wheels_are_locked_for_both_machines(self) -> None:
        for release in ("0.5.21", "0.5.22", "0.5.23"):
            for architecture in ("amd64", "arm64"):
                variant = self.declaration.images[f"release-{release}"].variants[architecture]
                wheels = [self.lock.entries[n] for n in variant.inputs if self.lock.entries[n].kind == "wheel"]
                assert len(wheels) >= 6
                assert all(each.resolved for each in wheels)

    def test_wheels_are_those_that_the_adapters_were_checked_with(self) -> None:
        builds = yaml.safe_load((ROOT / "experiments/engine_builds.yml").read_text())["builds"]
        checked = {each["wheel"]["file"]: each["wheel"]["sha256"] for each in builds.values() if "wheel" in each}
        locked = {getattr(e, "file", None): getattr(e, "sha256", None) for e in self.lock.entries.values()}
        assert checked
        assert {name: locked[name] for name in checked} == checked

    def test_digests_are_those_that_plans_know(self) -> None:
        builds = yaml.safe_load((ROOT / "experiments/engine_builds.yml").read_text())["builds"]
        second = self.lock.entries["dev-dsv41-2-arm64"].model_dump()
        assert {second["index"], second["digest"], second["config"]} == set(builds["dev-dsv41@da64c5cbb"]["images"])
        assert self.lock.entries["dev-dsv41-1-arm64"].model_dump()["index"] in builds["dev-dsv41@37939c26"]["images"]

    def test_a_release_is_not_available_while_it_lacks_something(self) -> None:
        lacks = yaml.safe_load((ROOT / "experiments/engine_builds.yml").read_text())["images"]["release"]["lacks"]
        releases = [image for name, image in self.declaration.images.items() if name.startswith("release-")]
        assert releases
        if lacks:
            assert not any(variant.available for image in releases for variant in image.variants.values())

    def test_versions_of_the_lab_are_those_of_its_packages(self) -> None:
        for base in ("lab-base", "lab-node"):
            recorded = self.lock.entries[base].model_dump()["packages"]
            assert sorted(recorded) == base_packages(ROOT, base)


BASE = {"kind": "image", "repository": "r.example/a", "architecture": "arm64", "unresolved": "why"}
FILE = {"kind": "file", "file": "a", "unresolved": "why"}
IMAGE = {"title": "t", "dockerfile": "a/Dockerfile", "user": "1000"}


def declared(inputs: dict[str, Any], variant: dict[str, Any], **image: Any) -> Declaration:
    data = {"schema_version": 1, "inputs": inputs, "images": {"x": IMAGE | {"variants": {"arm64": variant}} | image}}
    return check_model(Declaration, data, "x", "TS-IMAGES-SCHEMA")


@pytest.mark.parametrize(
    ("inputs", "variant", "image", "text"),
    [
        ({"b": BASE}, {"base": "c", "available": True}, {}, "c is no input"),
        ({"b": BASE, "f": FILE}, {"base": "b", "available": True}, {}, "no image is made of f"),
        ({"b": BASE, "f": FILE}, {"base": "f", "inputs": ["b"], "available": True}, {}, "f is no base image"),
        ({"b": BASE}, {"base": "b", "inputs": ["b"], "available": True}, {}, "an input is there twice"),
        ({"b": BASE | {"architecture": "amd64"}}, {"base": "b", "available": True}, {}, "b is for amd64"),
        ({"b": BASE}, {"base": "b", "available": False}, {}, "reason"),
        ({"b": BASE}, {"base": "b", "available": True, "reason": "x"}, {}, "reason"),
        ({"b": BASE}, {"base": "b", "available": True}, {"user": "root"}, "root_because"),
        ({"b": BASE}, {"base": "b", "available": True}, {"dockerfile": "../Dockerfile"}, "dockerfile"),
    ],
)
def test_a_declaration_that_does_not_fit_together_is_refused(
    inputs: dict[str, Any], variant: dict[str, Any], image: dict[str, Any], text: str
) -> None:
    with pytest.raises(TrisparkError, match=text):
        declared(inputs, variant, **image)


def test_a_lock_that_is_older_than_the_declaration_is_named() -> None:
    declaration = declared({"b": BASE, "f": FILE}, {"base": "b", "inputs": ["f"], "available": True})
    same = {"b": BASE, "f": FILE | {"sha256": "a" * 64}}
    same["f"].pop("unresolved")
    assert stale(declaration, lock_of(same)) == {}, "a hash that was found is no difference"
    assert set(stale(declaration, lock_of({"b": BASE}))) == {"f"}
    assert set(stale(declaration, lock_of({**same, "g": FILE}))) == {"g"}
    assert stale(declaration, lock_of({**same, "b": BASE | {"repository": "r.example/other"}}))["b"].endswith(
        "repository"
    )
    stated = declared({"b": BASE | {"index": "sha256:" + "1" * 64, "digest": "sha256:" + "2" * 64, "unresolved": None}},
                      {"base": "b", "available": True})  # fmt: skip
    other = {k: v for k, v in BASE.items() if k != "unresolved"} | {
        "index": "sha256:" + "1" * 64,
        "digest": "sha256:" + "3" * 64,
    }
    assert stale(stated, lock_of({"b": other}))["b"].endswith("digest")
    assert list(overstated(declaration, lock_of(same))) == ["x on arm64 is called available, without b"]

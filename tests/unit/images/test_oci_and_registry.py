"""From an archive of the Engine to a registry over HTTP: one digest, whole or absent, and each refusal by name."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_registry import Served, serving

from trispark.errors import TrisparkError
from trispark.images.layers import EPOCH
from trispark.images.oci import CREATED, BlobStore, OciImage, from_engine
from trispark.images.registry import Registry
from trispark.lab.registry import digest_of

LABELS = {"org.opencontainers.image.title": "a"}


def layer_tar(*files: tuple[str, bytes], mtime: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:") as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), mtime
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def saved(path: Path, layers: list[bytes], *, env: list[str], when: str, labels: dict[str, str]) -> Path:
    """As `docker save` writes it."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": when,
        "docker_version": "20.10",
        "container": when,
        "config": {"Env": env, "Cmd": ["run"], "Labels": labels, "Hostname": when, "Image": when, "Volumes": None},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
        "history": [{"created": when}],
    }
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listed = [{"Config": "config.json", "RepoTags": [f"x:{when}"], "Layers": names}]
    with tarfile.open(path, "w") as tar:
        parts = dict(zip(names, layers, strict=True))
        parts |= {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(listed).encode()}
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def image(tmp_path: Path, store: BlobStore, when: int = 1, env: str = "A=1", data: bytes = b"x") -> OciImage:
    layers = [layer_tar(("base", b"b"), mtime=EPOCH + when), layer_tar(("f", data), ("g", b""), mtime=EPOCH + when)]
    archive = saved(tmp_path / f"{when}.tar", layers, env=[env], when=str(when), labels={"root": str(when)})
    return from_engine(archive, store, labels=LABELS)


def test_two_builds_at_two_times_have_one_digest(tmp_path: Path) -> None:
    first = image(tmp_path, BlobStore(tmp_path / "one"), when=1)
    second = image(tmp_path, BlobStore(tmp_path / "two"), when=2)
    assert first == second
    config = json.loads(BlobStore(tmp_path / "one").path(first.config.digest).read_bytes())
    assert config["config"] == {"Env": ["A=1"], "Cmd": ["run"], "Labels": LABELS}
    assert config["created"] == CREATED
    assert config["rootfs"]["diff_ids"] == [each.digest for each in first.layers]
    assert len(config["history"]) == len(first.layers)


@pytest.mark.parametrize("change", [{"env": "A=2"}, {"data": b"y"}])
def test_other_content_has_another_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    store = BlobStore(tmp_path / "store")
    assert image(tmp_path, store).manifest != image(tmp_path, store, when=2, **change).manifest


def test_every_blob_is_what_its_name_says(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    for blob in made.blobs:
        data = store.path(blob.digest).read_bytes()
        assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (blob.digest, blob.size)


def test_a_known_layer_is_not_read_again_and_a_cut_one_is(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    before = [store.path(each.digest).stat().st_ino for each in made.layers]
    image(tmp_path, store)
    assert [store.path(each.digest).stat().st_ino for each in made.layers] == before
    store.path(made.layers[1].digest).write_bytes(b"cut")
    assert image(tmp_path, store) == made
    assert store.path(made.layers[1].digest).stat().st_size == made.layers[1].size


@pytest.mark.parametrize("which", [0, 1])
def test_a_blob_of_its_size_with_other_bytes_is_not_believed_after_a_power_cut(tmp_path: Path, which: int) -> None:
    """The name was on the disk before the bytes. Without a hash each further push would send what no registry takes."""
    made = image(tmp_path, BlobStore(tmp_path / "store"))
    torn = BlobStore(tmp_path / "store").path(made.layers[which].digest)
    torn.write_bytes(bytes(made.layers[which].size))
    after = BlobStore(tmp_path / "store")
    assert {layer.digest for layer in after.known_layers().values()} == {made.layers[1 - which].digest}
    untouched = after.path(made.layers[1 - which].digest).stat().st_ino
    assert image(tmp_path, after) == made
    assert f"sha256:{hashlib.sha256(torn.read_bytes()).hexdigest()}" == made.layers[which].digest
    assert after.path(made.layers[1 - which].digest).stat().st_ino == untouched


@pytest.mark.parametrize("part", ["config", "manifest", "layer"])
def test_an_image_with_torn_bytes_leaves_the_index(tmp_path: Path, part: str) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    store.keep({"a": made}, ["a"])
    blob = made.layers[0] if part == "layer" else getattr(made, part)
    data = store.path(blob.digest).read_bytes()
    assert BlobStore(store.root).images() == {"a": made}
    # One byte that changes nothing which is looked at otherwise: of a year, of a media type.
    at = data.index({"config": b"2026-", "manifest": b"application/", "layer": b"base"}[part])
    store.path(blob.digest).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert BlobStore(store.root).images() == {}


def test_what_a_store_wrote_itself_or_has_hashed_is_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    store.keep({"a": made}, ["a"])
    hashed: list[str] = []
    true = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        hashed.append(Path(file.name).name)
        return true(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    assert (len(store.known_layers()), len(store.images()), hashed) == (2, 1, [])
    later = BlobStore(store.root)
    for _ in range(2):
        assert (len(later.known_layers()), len(later.images())) == (2, 1)
    assert sorted(hashed) == sorted(each.digest.removeprefix("sha256:") for each in made.blobs)


def test_the_index_keeps_what_is_named_and_removes_the_rest(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    kept, gone = image(tmp_path, store), image(tmp_path, store, when=2, data=b"other")
    (store.root / "blobs" / "sha256" / ".partial-1").write_bytes(b"killed")
    store.keep({"kept": kept, "gone": gone}, ["kept", "unbuilt"])
    assert store.images() == {"kept": kept}
    names = {path.name for path in (store.root / "blobs" / "sha256").iterdir()}
    assert names == {blob.digest.removeprefix("sha256:") for blob in kept.blobs}
    store.path(kept.config.digest).unlink()
    assert store.images() == {}, "not whole any more"


@pytest.mark.parametrize("members", [{}, {"manifest.json": b"[]"}, {"manifest.json": b"{"}])
def test_what_is_no_archive_of_an_image_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(TrisparkError) as refused:
        from_engine(archive, BlobStore(tmp_path / "store"), labels={})
    assert refused.value.id == "TS-IMAGES-ARCHIVE"


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as registry:
        yield registry


def test_a_push_brings_every_blob_and_the_second_one_none(tmp_path: Path, served: Served) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    registry = Registry(served.address)
    assert registry.manifest("r", "t") is None
    assert registry.push(made, store, "r", "t") == made.manifest.digest
    assert set(served.puts) == {blob.digest for blob in made.blobs[:-1]}
    held = registry.manifest("r", "t")
    assert held is not None
    assert f"sha256:{hashlib.sha256(held).hexdigest()}" == made.manifest.digest
    assert digest_of(f"{served.address}/r:t", served.address) == made.manifest.digest
    assert digest_of(f"{served.address}/r:other", served.address) == ""
    served.puts.clear()
    registry.push(made, store, "r", "t2")
    assert served.puts == []


def test_a_blob_that_the_registry_holds_torn_is_sent_again(tmp_path: Path, served: Served) -> None:
    """As after a power cut: it answers for the name, with another length."""
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    registry = Registry(served.address)
    registry.push(made, store, "r", "t")
    torn = made.blobs[0].digest
    served.blobs[torn] = served.blobs[torn][:-1]
    served.puts.clear()
    registry.push(made, store, "r", "t")
    assert served.puts == [torn]
    assert len(served.blobs[torn]) == made.blobs[0].size


@pytest.mark.parametrize("ends_at", range(10))
def test_a_push_that_is_cut_off_leaves_no_image_and_the_next_goes_on(
    tmp_path: Path, served: Served, ends_at: int
) -> None:
    """Three blobs of three calls each, then the manifest."""
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    served.ends_at = ends_at
    with pytest.raises(TrisparkError) as refused:
        Registry(served.address).push(made, store, "r", "t")
    assert (refused.value.id, served.manifests) == ("TS-IMAGES-PUSH", {})
    before = set(served.blobs)
    assert len(before) == ends_at // 3
    served.puts.clear()
    served.ends_at = 10**9
    Registry(served.address).push(made, store, "r", "t")
    assert before.isdisjoint(served.puts), "nothing is sent twice"
    assert set(served.manifests) == {"t"}


@pytest.mark.parametrize(("method", "status"), [("POST", 401), ("PUT", 500), ("PUT", 413)])
def test_what_a_registry_refuses_is_told_with_its_words(
    tmp_path: Path, served: Served, method: str, status: int
) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    served.status = {method: status}
    with pytest.raises(TrisparkError) as refused:
        Registry(served.address).push(made, store, "r", "t")
    assert (refused.value.id, str(status) in refused.value.observed) == ("TS-IMAGES-PUSH", True)
    assert "DENIED" in refused.value.observed


def test_another_manifest_under_the_tag_is_seen(tmp_path: Path, served: Served) -> None:
    """A registry that says 201 and keeps what it had, or that another push has overtaken."""
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    kept = served.answer

    def other(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, b"{}") if method == "GET" else kept(method, path, body)

    served.answer = other  # type: ignore[method-assign]
    with pytest.raises(TrisparkError, match="another manifest under t"):
        Registry(served.address).push(made, store, "r", "t")


def test_no_registry_is_told_by_name(tmp_path: Path, served: Served) -> None:
    store = BlobStore(tmp_path / "store")
    made = image(tmp_path, store)
    served.ends_at = 0
    with pytest.raises(TrisparkError) as refused:
        Registry(served.address).push(made, store, "r", "t")
    assert refused.value.where == f"{served.address}/r"


@pytest.mark.parametrize("data", [b"garbage" * 1000, b"", b"\0" * 512])
def test_an_archive_that_is_no_tar_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "save.tar").write_bytes(data)
    with pytest.raises(TrisparkError) as caught:
        from_engine(tmp_path / "save.tar", BlobStore(tmp_path / "store"), labels={})
    assert caught.value.id == "TS-IMAGES-ARCHIVE"


def test_a_disk_that_is_full_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay full: parts go with the next push that ends well."""

    def full(_source: Any, target: Any) -> Any:
        target.write(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trispark.images.oci.write_layer", full)
    with pytest.raises(OSError, match="No space"):
        BlobStore(tmp_path).add_layer(io.BytesIO())
    assert list((tmp_path / "blobs/sha256").iterdir()) == []

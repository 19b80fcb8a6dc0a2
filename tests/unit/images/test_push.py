"""From a build context over a builder's archive to a registry: what is not what it says is named, and nothing sent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from file_index import FileIndex
from file_index import serving as index_serving
from hypothesis import given, settings
from hypothesis import strategies as st
from image_project import WHEEL, Project
from oci_archives import (
    INDEX,
    LAYER,
    MANIFEST,
    OciImage,
    descriptor,
    digest_of,
    files_of,
    index_of,
    labels_of,
    write,
)
from served_registry import Served, serving

from trispark.errors import TrisparkError
from trispark.images.archive import ImageArchive
from trispark.images.built import DIRECTORY, ArchivedLayers, read_built
from trispark.images.context_file import BuildContext, read_context
from trispark.images.declaration import load_declaration
from trispark.images.push import Pushed, Request, push, tag_of
from trispark.images.registry import HttpTransport, Registry
from trispark.images.registry_address import Place, place_of

Files = dict[str, bytes]


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as registry:
        yield registry


class Bench:
    """A checkout, the context of its image, and what a builder made of it."""

    def __init__(self, root: Path, served: Served) -> None:
        self.root, self.served, self.said = root, served, list[str]()
        self.folder = root / "context"
        self.path = root / "canary.oci.tar"

    @property
    def context(self) -> BuildContext:
        return read_context(self.folder)

    def image(self, **changes: Any) -> OciImage:
        return OciImage({**labels_of(self.context.file), **changes.pop("labels", {})}, **changes)

    def push(self, to: bool = True, name: str = "canary") -> Pushed:
        place = place_of(f"{self.served.address}/fleet/canary") if to else None
        request = Request(name, self.folder, self.path, place)
        return push(
            self.root,
            load_declaration(self.root),
            request,
            self.said.append,
            lambda place: Registry(place.address),
        )

    def refused(self) -> TrisparkError:
        """Of a push; the registry was not asked, and nothing was described."""
        with pytest.raises(TrisparkError) as caught:
            self.push()
        assert (self.served.calls, (self.root / DIRECTORY).exists()) == (0, False)
        return caught.value


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: it is copied for each test."""
    root = tmp_path_factory.mktemp("checkout")
    with index_serving(FileIndex()) as index:
        index.wheel("tiny-kernel", WHEEL, b"tiny")
        project = Project(root, index)
        project.lock(*project.inputs)
        project.make("context")
    shutil.rmtree(root / ".trispark")
    return root


@pytest.fixture
def bench(tmp_path: Path, checkout: Path, served: Served) -> Bench:
    shutil.copytree(checkout, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Bench(tmp_path, served)


@pytest.mark.parametrize("gzipped", [(), (0, 1), (1,)])
def test_the_registry_has_exactly_what_the_builder_wrote(bench: Bench, gzipped: tuple[int, ...]) -> None:
    image = bench.image(gzipped=gzipped)
    write(bench.path, files_of(image))
    made = bench.push()
    assert (made.digest, made.image_id) == (image.digest, digest_of(image.config))
    assert made.repository == f"{bench.served.address}/fleet/canary"
    assert bench.served.manifests == {tag_of(image.digest): image.manifest}
    assert bench.served.blobs == {d: data for d, data in image.blobs.items() if d != image.digest}
    assert made.size == sum(map(len, image.blobs.values()))
    assert bench.said[0].endswith("linux/arm64, 2 layers")
    assert [line for line in bench.said if line.startswith("blob 3 of 3: ")] == [
        f"blob 3 of 3: {len(image.config)} bytes, sent"
    ]
    bench.served.puts.clear()
    bench.push()
    assert bench.served.puts == []


def test_the_description_says_what_the_context_says(bench: Bench) -> None:
    image = bench.image()
    write(bench.path, files_of(image))
    made = bench.push()
    found, layers = read_built(made.description)
    file = bench.context.file
    assert isinstance(layers, ArchivedLayers)
    assert layers.archive.resolve() == bench.path
    assert layers.digests == tuple(digest_of(data) for data in image.layers)
    assert found.reference == f"{bench.served.address}/fleet/canary@{image.digest}"
    assert (found.base, found.base_digest) == ("r.example/a", "sha256:" + "d" * 64)
    assert (found.architecture, found.dockerfile) == ("arm64", "Dockerfiles/canary/Dockerfile")
    assert found.dockerfile_sha256 == digest_of((bench.folder / "Dockerfile").read_bytes())[7:]
    assert found.arguments == file.arguments
    assert found.commit is None, "the revision of the test is no commit"
    assert set(found.context) == {
        path.relative_to(bench.folder).as_posix() for path in bench.folder.rglob("*") if path.is_file()
    } - {"build.json"}
    assert [(each.name, each.purl.partition("@")[0]) for each in found.dependencies] == [
        ("tiny-kernel", "pkg:pypi/tiny-kernel"),
        ("sglang-f80c91a4b", "pkg:generic/sglang-f80c91a4b"),
        ("sm120-mla-overlay", "pkg:generic/sm120-mla-overlay"),
    ]


def test_without_a_registry_it_is_judged_and_described_and_nothing_is_sent(bench: Bench) -> None:
    image = bench.image()
    write(bench.path, files_of(image))
    made = bench.push(to=False)
    assert (made.tag, made.repository, bench.served.calls) == ("", "trispark/canary", 0)
    assert read_built(made.description)[0].manifest_digest == image.digest


def test_an_image_that_was_pushed_keeps_its_repository_without_a_registry(bench: Bench) -> None:
    write(bench.path, files_of(bench.image()))
    pushed = bench.push()
    before = pushed.description.read_bytes()
    again = bench.push(to=False)
    assert (again.tag, again.repository) == ("", pushed.repository)
    assert again.description.read_bytes() == before, "so its statement has the same bytes"
    write(bench.path, files_of(bench.image(gzipped=(0,))))
    other = bench.push(to=False)
    assert (other.digest != pushed.digest, other.repository) == (True, "trispark/canary"), "another image was not there"
    other.description.write_text("no description")
    assert bench.push(to=False).repository == "trispark/canary"


@pytest.mark.parametrize("ends_at", range(11))
def test_a_push_that_is_cut_off_leaves_no_image_and_the_same_command_goes_on(bench: Bench, ends_at: int) -> None:
    """Three blobs of three calls each, the manifest, and the look at it."""
    image = bench.image(gzipped=(0,))
    write(bench.path, files_of(image))
    bench.served.ends_at = ends_at
    with pytest.raises(TrisparkError) as caught:
        bench.push()
    assert caught.value.id == "TS-IMAGES-PUSH"
    assert (bool(bench.served.manifests), (bench.root / DIRECTORY).exists()) == (ends_at == 10, False)
    before = set(bench.served.blobs)
    assert len(before) == min(ends_at // 3, 3)
    bench.served.puts.clear()
    bench.served.ends_at = 10**9
    assert bench.push().digest == image.digest
    assert before.isdisjoint(bench.served.puts), "nothing is sent twice"


def test_one_platform_of_an_index_is_taken_and_a_builders_own_words_are_not(bench: Bench) -> None:
    image, other = bench.image(), bench.image(architecture="amd64")
    words = json.dumps({"mediaType": MANIFEST, "layers": []}).encode()
    note = {"vnd.docker.reference.type": "attestation-manifest"}
    inner = index_of(
        {**other.entry, "platform": other.platform},
        {**image.entry, "platform": image.platform},
        {**descriptor(MANIFEST, words), "annotations": note, "platform": {"os": "unknown", "architecture": "unknown"}},
    )
    files = {**files_of(other), **files_of(image), f"blobs/sha256/{digest_of(inner)[7:]}": inner}
    write(bench.path, {**files, "index.json": index_of(descriptor(INDEX, inner))})
    assert bench.push().digest == image.digest
    assert other.digest not in map(digest_of, bench.served.manifests.values())


def test_the_same_image_under_two_names_is_one(bench: Bench) -> None:
    image = bench.image()
    named = [{**image.entry, "annotations": {"org.opencontainers.image.ref.name": name}} for name in "ab"]
    write(bench.path, {**files_of(image), "index.json": index_of(*named)})
    assert bench.push().digest == image.digest


def test_another_platform_is_named(bench: Bench) -> None:
    for image in (bench.image(architecture="amd64"),):
        write(bench.path, files_of(image))
        error = bench.refused()
        assert (error.id, error.expected, error.observed) == ("TS-IMAGES-PLATFORM", "linux/arm64", "linux/amd64")


def test_a_platform_that_only_the_index_states_is_not_believed(bench: Bench) -> None:
    image = bench.image(architecture="amd64")
    lie = {**image.entry, "platform": {"os": "linux", "architecture": "arm64"}}
    write(bench.path, {**files_of(image), "index.json": index_of(lie)})
    error = bench.refused()
    assert (error.id, error.observed) == ("TS-IMAGES-ARCHIVE", "linux/amd64")


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("org.opencontainers.image.title", "another"),
        ("org.opencontainers.image.revision", "def"),
        ("org.opencontainers.image.version", "2"),
        ("org.opencontainers.image.base.digest", "sha256:" + "e" * 64),
        ("org.opencontainers.image.base.name", "r.example/b"),
        ("trispark.context", "0" * 64),
    ],
)
def test_an_image_of_another_context_is_named_by_its_label(bench: Bench, label: str, value: str) -> None:
    write(bench.path, files_of(bench.image(labels={label: value})))
    error = bench.refused()
    assert (error.id, error.observed) == ("TS-IMAGES-OTHER", value)
    assert error.where.endswith(label)


def test_an_image_without_labels_is_of_no_context(bench: Bench) -> None:
    write(bench.path, files_of(OciImage({})))
    assert (bench.refused().id, bench.refused().observed) == ("TS-IMAGES-OTHER", "no such label")


@pytest.mark.parametrize("line", ["DSV41_CACHE_GIB=16", "DSV41_CACHE_GIB=", "NCCL_PROTO", "SGLANG_NEW_SWITCH=1"])
def test_a_variable_of_an_experiment_is_refused(bench: Bench, line: str) -> None:
    write(bench.path, files_of(bench.image(env=["PATH=/bin", line])))
    error = bench.refused()
    assert (error.id, line.partition("=")[0] in error.observed) == ("TS-IMAGES-VARIABLE", True)


def test_what_an_engine_says_of_itself_is_none(bench: Bench) -> None:
    write(bench.path, files_of(bench.image(env=["CUDA_VERSION=13.0", "NCCL_VERSION=2.30"])))
    assert bench.push(to=False).digest


def test_a_context_that_was_changed_is_refused(bench: Bench) -> None:
    write(bench.path, files_of(bench.image()))
    file, said = bench.folder / "build.json", (bench.folder / "build.json").read_text()
    (bench.folder / "wheels" / "more.whl").write_text("x")
    assert bench.refused().id == "TS-IMAGES-CONTEXT"
    (bench.folder / "wheels" / "more.whl").unlink()
    (bench.folder / "Dockerfile").chmod(0o755)
    assert bench.refused().id == "TS-IMAGES-CONTEXT"
    (bench.folder / "Dockerfile").chmod(0o644)
    for change in (
        said.replace("r.example/a", "r.example/b"),
        said.replace("--network", "--net"),
        said.replace('"revision"', '"revisions"'),
        "{",
    ):
        file.write_text(change)
        assert bench.refused().id == "TS-IMAGES-CONTEXT"
    file.unlink()
    assert bench.refused().id == "TS-IMAGES-CONTEXT"
    file.write_text(said)
    (bench.folder / "tree" / ".git").mkdir()
    assert bench.refused().id == "TS-IMAGES-CONTEXT"
    (bench.folder / "tree" / ".git").rmdir()
    with pytest.raises(TrisparkError, match="TS-IMAGES-NAME"):
        bench.push(name="engine-dev-dsv41-2")
    assert bench.push().digest


def changed(key: str, value: Any) -> Callable[[OciImage, Files], None]:
    """The manifest has `value` at `key`; its digest is its own."""

    def spoil(image: OciImage, files: Files) -> None:
        place: Any = image.described
        *ways, last = key.split(".")
        for way in ways:
            place = place[int(way) if way.isdigit() else way]
        place[int(last) if last.isdigit() else last] = value
        files.clear()
        files.update(files_of(image))

    return spoil


def drop(what: str) -> Callable[[OciImage, Files], None]:
    def spoil(image: OciImage, files: Files) -> None:
        name = what if what in files else blob(image, what)
        del files[name]

    return spoil


def flip(what: str) -> Callable[[OciImage, Files], None]:
    def spoil(image: OciImage, files: Files) -> None:
        name = blob(image, what)
        files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]

    return spoil


def put(name: str, data: bytes) -> Callable[[OciImage, Files], None]:
    def spoil(_image: OciImage, files: Files) -> None:
        files[name] = data

    return spoil


def blob(image: OciImage, what: str) -> str:
    data = {"manifest": image.manifest, "config": image.config, "layer": image.layers[1]}[what]
    return f"blobs/sha256/{digest_of(data)[7:]}"


def saved(image: OciImage, files: Files) -> None:
    """As `docker save` wrote it for ten years."""
    files.clear()
    files.update({"manifest.json": b"[]", "0/layer.tar": image.layers[0]})


def two(image: OciImage, files: Files) -> None:
    other = OciImage({"a": "b"})
    files.update(files_of(other))
    files["index.json"] = index_of(image.entry, other.entry)


def wide(image: OciImage, files: Files) -> None:
    """A million ways to one image, through indexes of thirty and forty kilobytes."""
    inner = index_of(*[image.entry] * 999)
    outer = index_of(*[descriptor(INDEX, inner)] * 999)
    files.update({f"blobs/sha256/{digest_of(each)[7:]}": each for each in (inner, outer)})
    files["index.json"] = index_of(descriptor(INDEX, outer))


def nested(image: OciImage, files: Files) -> None:
    entry = image.entry
    for _ in range(4):
        index = index_of(entry)
        files[f"blobs/sha256/{digest_of(index)[7:]}"] = index
        entry = descriptor(INDEX, index)
    files["index.json"] = index_of(entry)


SPOILED: dict[str, Callable[[OciImage, Files], None]] = {
    "of docker save": saved,
    "two images of one platform": two,
    "indexes in indexes": nested,
    "very many ways to one image": wide,
    "no manifest": drop("manifest"),
    "no configuration": drop("config"),
    "no layer": drop("layer"),
    "no index": drop("index.json"),
    "no oci-layout": drop("oci-layout"),
    "another layer": flip("layer"),
    "another manifest": flip("manifest"),
    "another configuration": flip("config"),
    "a layout of version 2": put("oci-layout", b'{"imageLayoutVersion": "2.0"}'),
    "an index that is no JSON": put("index.json", b"{"),
    "an index too deep": put("index.json", b"[" * 10_000 + b"]" * 10_000),
    "an index without images": put("index.json", b'{"manifests": {}}'),
    "an index of many images": put("index.json", index_of(*[{}] * 1001)),
    "an index that is too large": put("index.json", b" " * (8 * 2**20 + 1)),
    "a layer from elsewhere": changed("layers.0.mediaType", f"{LAYER}.nondistributable+gzip"),
    "a layer by another hash": changed("layers.0.digest", "sha512:" + "1" * 128),
    "a layer by a path": changed("layers.0.digest", "sha256:../../../../etc/passwd"),
    "a layer of another size": changed("layers.0.size", 7),
    "a layer of a size below zero": changed("layers.0.size", -1),
    "a layer of no size": changed("layers.0.size", True),
    "no layers": changed("layers", []),
    "more layers than contents": changed("layers", [descriptor(LAYER, b"x")]),
    "layers of another kind": changed("layers", {"0": {}}),
    "a configuration of another kind": changed("config", []),
    "a manifest that says to be something else": changed("mediaType", INDEX),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_spoiled_archive_is_refused_before_anything_is_sent(
    bench: Bench, spoil: Callable[[OciImage, Files], None]
) -> None:
    image = bench.image()
    files = files_of(image)
    spoil(image, files)
    write(bench.path, files)
    error = bench.refused()
    assert (error.id, error.where) == ("TS-IMAGES-ARCHIVE", str(bench.path))
    assert ("docker save" in error.observed) == (spoil is saved)


@pytest.mark.parametrize("at", ["before the layers end", "in a header", "in the index"])
def test_an_archive_that_was_cut_off_is_refused(bench: Bench, at: str) -> None:
    whole = write(bench.path, files_of(bench.image())).read_bytes()
    with tarfile.open(bench.path) as tar:
        index = tar.getmember("index.json")
    cut = {"before the layers end": 3000, "in a header": index.offset + 100, "in the index": index.offset_data + 10}
    bench.path.write_bytes(whole[: cut[at]])
    assert bench.refused().id == "TS-IMAGES-ARCHIVE"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_part_that_is_a_link_or_a_device_is_refused(bench: Bench, kind: bytes) -> None:
    image = bench.image()
    files = files_of(image)
    name = blob(image, "layer")
    del files[name]
    write(bench.path, files, member(name, kind, "/etc/passwd"))
    error = bench.refused()
    assert (error.id, "no plain file" in error.observed) == ("TS-IMAGES-ARCHIVE", True)


def test_a_part_that_is_there_twice_is_refused(bench: Bench) -> None:
    image = bench.image()
    write(bench.path, files_of(image), member(f"./{blob(image, 'layer')}"))
    assert "there twice" in bench.refused().observed


def test_names_that_lead_elsewhere_are_no_parts_and_nothing_is_written(bench: Bench, tmp_path: Path) -> None:
    image = bench.image()
    strange = (
        member("../../evil"),
        member("/etc/evil"),
        member("blobs/sha256/../../evil"),
        member("a", tarfile.SYMTYPE, "/"),
    )
    write(bench.path, files_of(image), *strange)
    before = {path for path in tmp_path.rglob("*") if ".trispark" not in path.parts}
    assert bench.push().digest == image.digest
    assert {path for path in tmp_path.rglob("*") if ".trispark" not in path.parts} == before
    assert set(bench.served.blobs) == set(image.blobs) - {image.digest}


def test_an_archive_of_very_many_members_is_given_up_early(bench: Bench) -> None:
    """A million headers, and nothing of them is kept."""
    header = member("x").tobuf()
    with bench.path.open("wb") as file:
        for _ in range(100):
            file.write(header * 10_000)
        file.write(b"\0" * 1024)
    assert bench.refused().observed == "more than 10000 members"


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_refused(bench: Bench, kind: bytes) -> None:
    size = 2**34
    with bench.path.open("wb") as file:
        file.write(member("x", kind, size=size).tobuf(tarfile.GNU_FORMAT))
        file.truncate(size + 4096)  # a sparse file: it has no bytes on the disk
    assert bench.refused().observed == f"a header of {size} bytes"


def test_a_size_that_the_file_has_not_is_refused(bench: Bench) -> None:
    image = bench.image()
    bench.path.write_bytes(member(blob(image, "layer"), size=2**40).tobuf(tarfile.GNU_FORMAT))
    assert bench.refused().id == "TS-IMAGES-ARCHIVE"


@pytest.mark.parametrize("kind", ["absent", "a directory", "no tar", "empty"])
def test_what_is_no_archive_is_named(bench: Bench, kind: str) -> None:
    if kind == "a directory":
        bench.path.mkdir()
    elif kind != "absent":
        bench.path.write_bytes(b"x" * 5000 if kind == "no tar" else b"")
    error = bench.refused()
    assert (error.id, error.where) == ("TS-IMAGES-ARCHIVE", str(bench.path))


def test_an_archive_that_changes_while_it_is_sent_leaves_no_image(bench: Bench) -> None:
    """The registry hashes what it gets; a file that became shorter ends the push itself."""
    image = bench.image(roots=[{"a": "x" * 3_000_000}])
    write(bench.path, files_of(image))
    kept = bench.served.answer

    def answer(method: str, path: str, body: bytes) -> Any:
        if method == "POST":
            with bench.path.open("r+b") as file:
                file.truncate(1_000_000)
        return kept(method, path, body)

    bench.served.answer = answer  # type: ignore[method-assign]
    with pytest.raises(TrisparkError, match="cut off while it was read"):
        bench.push()
    assert (bench.served.manifests, (bench.root / DIRECTORY).exists()) == ({}, False)


def test_a_description_that_cannot_be_written_is_named(bench: Bench) -> None:
    write(bench.path, files_of(bench.image()))
    (bench.root / DIRECTORY).parent.mkdir(parents=True)
    (bench.root / DIRECTORY).write_text("a file in its place")
    with pytest.raises(TrisparkError, match="TS-IMAGES-DESCRIPTION"):
        bench.push(to=False)


@pytest.mark.parametrize(
    "text",
    ["engine", "registry.example", "https://registry.example/e", "r.example/e:1", "r.example/e@sha256:1", "r.example/E",
     "r.example//e", "r.example/e/", "user@r.example/e", "r.example:0/e", "-x.example/e", "r.example/" + "e" * 300],
)  # fmt: skip
def test_what_cannot_be_a_repository_is_named(text: str) -> None:
    with pytest.raises(TrisparkError, match="TS-IMAGES-REPOSITORY"):
        place_of(text)


@pytest.mark.parametrize(
    ("text", "address", "path"),
    [
        ("registry.example:5000/a/b-c", "registry.example:5000", "a/b-c"),
        ("localhost/e", "localhost", "e"),
        ("[::1]:5000/e", "[::1]:5000", "e"),
        ("docker.io/lmsysorg/sglang", "registry-1.docker.io", "lmsysorg/sglang"),
    ],
)
def test_a_repository_is_asked_where_it_is(text: str, address: str, path: str) -> None:
    place = place_of(text)
    assert (place.address, place.path, place.reference) == (address, path, text)
    assert isinstance(place, Place)


def test_types_of_docker_are_pushed_as_they_are(bench: Bench) -> None:
    """BuildKit writes them where it is told not to write OCI types."""
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    image = bench.image(gzipped=(0, 1))
    image.described["mediaType"] = docker
    image.described["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json"
    for layer in image.described["layers"]:
        layer["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    types: list[str] = []
    kept = Registry._call

    def noted(registry: Registry, method: str, path: str, repository: str, body: Any, headers: dict[str, str]) -> Any:
        if method == "PUT" and "/manifests/" in path:
            types.append(headers["Content-Type"])
        return kept(registry, method, path, repository, body, headers)

    write(bench.path, {**files_of(image), "index.json": index_of(descriptor(docker, image.manifest))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "_call", noted)
        assert bench.push().digest == image.digest
    assert types == [docker]


def test_memory_does_not_grow_with_the_image(tmp_path: Path) -> None:
    """64 MiB are hashed and sent; at no time is an eighth of them held."""
    size = 64 * 2**20
    blob = "sha256:" + hashlib.sha256(bytes(size)).hexdigest()
    image = OciImage({})
    image.described["layers"][0] = {"mediaType": LAYER, "digest": blob, "size": size}
    small = tmp_path / "small.tar"
    write(small, files_of(image))
    with (tmp_path / "large.tar").open("wb") as file:
        file.write(member(f"blobs/sha256/{blob[7:]}", size=size).tobuf())
        file.seek(size, os.SEEK_CUR)
        file.write(small.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=swallow, args=(listening, 1))
        thread.start()
        tracemalloc.start()
        with ImageArchive(tmp_path / "large.tar") as archive:
            archive.verify(archive.image("arm64").image)
            with archive.open(blob) as body:
                HttpTransport(f"127.0.0.1:{listening.getsockname()[1]}").call(
                    "PUT", "/", body=body, headers={"Content-Length": str(size)}
                )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        thread.join(60)
    assert peak < size / 8


def swallow(listening: socket.socket, calls: int) -> None:
    """A peer that takes what comes and keeps nothing."""
    for _ in range(calls):
        connection, _address = listening.accept()
        buffer = bytearray(2**16)
        with connection, connection.makefile("rb") as incoming:
            length = 0
            while line := incoming.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            while length > 0:
                length -= incoming.readinto(memoryview(buffer)[: min(len(buffer), length)])
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole") / "e.tar", files_of(OciImage({"a": "b"}, gzipped=(1,))))


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 2**20), value=st.integers(1, 255), cut=st.booleans())
def test_a_byte_that_changed_is_refused_or_changes_nothing(whole: Path, place: int, value: int, cut: bool) -> None:
    """Padding and times of a tar may change; what is pushed may not."""
    data = bytearray(whole.read_bytes())
    place %= len(data)
    data[place] ^= value
    spoiled = whole.with_name("spoiled.tar")
    spoiled.write_bytes(data[:place] if cut else data)

    def read(path: Path) -> tuple[Any, list[bytes]]:
        with ImageArchive(path) as archive:
            found = archive.image("arm64")
            archive.verify(found.image)
            blobs = []
            for each in found.image.blobs:
                with archive.open(each.digest) as file:
                    blobs.append(file.read())
            return found, blobs

    refused, observed = "", read(whole)
    try:
        observed = read(spoiled)
    except TrisparkError as error:
        refused = error.id
    assert refused in ("", "TS-IMAGES-ARCHIVE", "TS-IMAGES-PLATFORM")
    assert observed == read(whole)

"""Archives that buildah and skopeo wrote (foreign/README.md): judged, pushed and read as they are."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from served_registry import serving

from trispark.errors import TrisparkError
from trispark.images.archive import ImageArchive
from trispark.images.built import read_built
from trispark.images.built_from import require_no_variable
from trispark.images.built_root import inventory_of_built
from trispark.images.declaration import load_declaration
from trispark.images.push import Pushed, Request, push
from trispark.images.registry import Registry
from trispark.images.registry_address import Place, place_of
from trispark.images.root_inventory import DebianPackage
from trispark_node.image_archive import Archive
from trispark_node.registry import look

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = Path(__file__).parent / "foreign"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(FOREIGN, tmp_path, dirs_exist_ok=True)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    return tmp_path


def pushed(root: Path, archive: str, to: Place | None) -> Pushed:
    request = Request("tiny", root / "context", root / archive, to)
    return push(root, load_declaration(root), request, lambda _: None, lambda place: Registry(place.address))


def blobs_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        members = [each for each in tar.getmembers() if each.isfile() and each.name.startswith("blobs/")]
        read = [tar.extractfile(each) for each in members]
        return {f"sha256:{each.name[-64:]}": data.read() for each, data in zip(members, read, strict=True) if data}


@pytest.mark.parametrize("name", ["buildah.oci.tar", "skopeo-zstd.oci.tar"])
def test_the_registry_gets_their_bytes(checkout: Path, name: str) -> None:
    blobs = blobs_of(checkout / name)
    with tarfile.open(checkout / name) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        digest = json.load(index)["manifests"][0]["digest"]
    with serving() as registry:
        made = pushed(checkout, name, place_of(f"{registry.address}/e"))
        assert made.digest == digest
        assert list(registry.manifests.values()) == [blobs[digest]]
        assert registry.blobs == {each: data for each, data in blobs.items() if each != digest}
    assert f"sha256:{hashlib.sha256(blobs[digest]).hexdigest()}" == digest


def test_what_is_in_the_image_is_read_from_its_archive(checkout: Path) -> None:
    image, layers = read_built(pushed(checkout, "buildah.oci.tar", None).description)
    assert (image.commit, image.base) == ("a" * 40, "r.example/tiny")
    said: list[str] = []
    found = inventory_of_built(layers, said.append)
    assert said == ["layer 1 of 2: 382 bytes, as its digest says", "layer 2 of 2: 209 bytes, as its digest says"]
    assert (found.distribution, found.packages) == ("ubuntu", (DebianPackage("libc6", "2.36", "arm64"),))
    assert [(each.name, each.version) for each in found.dists] == [("gone", "1"), ("tiny-kernel", "1.2")]


def test_layers_by_zstd_are_named_at_the_push_and_refused_when_they_are_to_be_read(checkout: Path) -> None:
    made = pushed(checkout, "skopeo-zstd.oci.tar", None)
    _, layers = read_built(made.description)
    assert len(made.unread) == 2
    with pytest.raises(TrisparkError) as caught:
        inventory_of_built(layers)
    assert (caught.value.id, made.unread[0] in caught.value.where) == ("TS-PROVENANCE-ROOT", True)
    assert "zstd" in caught.value.observed


def test_what_docker_save_would_write_is_refused(checkout: Path) -> None:
    with pytest.raises(TrisparkError) as caught:
        pushed(checkout, "skopeo-saved.tar", None)
    assert (caught.value.id, caught.value.observed) == ("TS-IMAGES-ARCHIVE", "an archive of docker save")


def test_the_agent_takes_the_same_archive_on_a_node(checkout: Path) -> None:
    made = pushed(checkout, "buildah.oci.tar", None)
    archive = Archive(str(checkout / "buildah.oci.tar"))
    found = look(archive, f"127.0.0.1:5055/tiny@{made.digest}", "linux/arm64")
    assert found is not None
    assert (found.platforms, len(found.layers)) == (("linux/arm64",), 2)
    archive.verify({layer.digest: layer.size for layer in found.layers})
    archive.close()


@pytest.mark.parametrize("line", ["DSV41_CACHE_GIB=16", "NCCL_PROTO=LL"])
def test_an_image_beside_the_engine_inherits_what_a_base_says_of_itself_and_no_variable(
    checkout: Path, line: str
) -> None:
    """As the load client of a fleet, on the engine's base."""
    image = load_declaration(checkout).images["tiny"]
    with ImageArchive(checkout / "buildah.oci.tar") as archive:
        found = archive.image("arm64")
    inherits = replace(found, environment={"CUDA_VERSION": "13.0", "NVIDIA_VISIBLE_DEVICES": "all"})
    require_no_variable(checkout, image, inherits, checkout)
    name, _, value = line.partition("=")
    sets = replace(found, environment={name: value})
    with pytest.raises(TrisparkError, match=f"TS-IMAGES-VARIABLE.*{name}"):
        require_no_variable(checkout, image, sets, checkout)

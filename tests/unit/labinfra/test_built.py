"""What the lab's build says of an image is what went into it, and enough for its provenance."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

from trispark.images.built import DIRECTORY, read_built
from trispark.images.oci import LAYER_TYPE, BlobStore, Descriptor, OciImage
from trispark.images.provenance import attest
from trispark.images.root_inventory import inventory_of
from trispark.lab.built import describe
from trispark.lab.layout import Paths
from trispark.lab.prepared import Image, Prepared
from trispark_node.canonical import canonical_json


def layer(store: BlobStore, name: str, text: str) -> tuple[str, int]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    found = store.add_bytes(LAYER_TYPE, buffer.getvalue())
    return found.digest, found.size


def world(root: Path) -> tuple[Paths, Prepared, OciImage, BlobStore]:
    """A checkout in git with an engine image on a shared one, both prepared, the engine's exported."""
    paths = Paths(root)
    images = {}
    for name, base in (("lab-deps", "trispark/lab-base-root:x"), ("lab-engine", "trispark/lab-deps:x")):
        context = root / "context" / name
        (context / "tree").mkdir(parents=True)
        (context / "Dockerfile").write_text(f"FROM {name}\n")
        (context / "tree" / "a.py").write_text(name)
        images[name] = Image(
            name, f"127.77.0.2:5000/trispark/{name}:x" if name == "lab-engine" else base_of(name), "c", str(context),
            base, pushed=name == "lab-engine",
        )  # fmt: skip
    store = BlobStore(root / "oci")
    layers = [
        Descriptor(LAYER_TYPE, *layer(store, "var/lib/dpkg/status", STATUS)),
        Descriptor(LAYER_TYPE, *layer(store, "opt/a-1.dist-info/METADATA", "Name: a\nVersion: 1\n")),
    ]
    config = store.add_bytes("config", canonical_json({"architecture": "arm64"}))
    made = OciImage(store.add_bytes("manifest", b"{}"), config, tuple(layers))
    return paths, Prepared(images, {}, "", "", "", ""), made, store


def base_of(name: str) -> str:
    return f"trispark/{name}:x"


STATUS = "Package: libc6\nStatus: install ok installed\nVersion: 1\nArchitecture: arm64\n"


def commit(root: Path) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A", "context"], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    (root / ".git/info/exclude").write_text("oci\n.trispark\nsaid\n")
    return subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_all_that_went_in_is_named(tmp_path: Path) -> None:
    paths, prepared, made, store = world(tmp_path)
    head = commit(tmp_path)
    described = describe(paths, prepared, prepared.images["lab-engine"], made, store)
    found, layers = read_built(tmp_path / DIRECTORY / "lab-engine.json")
    assert found == described
    assert [path.resolve() for path in layers] == [store.path(each.digest) for each in made.layers]
    assert found.reference == f"registry:5000/trispark/lab-engine@{made.manifest.digest}"
    assert (found.config_digest, found.architecture) == (made.config.digest, "arm64")
    assert (found.base_digest, found.commit) == (made.layers[0].digest, head)
    assert sorted(found.context) == sorted(
        f"{name}/{file}" for name in ("lab-deps", "lab-engine") for file in ("Dockerfile", "tree/a.py")
    )
    assert found.context["lab-deps/tree/a.py"] == hashlib.sha256(b"lab-deps").hexdigest()
    assert found.dockerfile_sha256 == hashlib.sha256(b"FROM lab-engine\n").hexdigest()
    attested = attest(found, inventory_of(*layers), None, tmp_path / "said")
    bill = json.loads((attested.directory / "sbom.cdx.json").read_text())
    assert [each["bom-ref"] for each in bill["components"]] == [
        "context:lab-deps",
        "context:lab-engine",
        "deb:libc6:arm64@1",
        "pypi:a@1#opt/a-1.dist-info",
    ]


def test_a_changed_tree_has_no_commit(tmp_path: Path) -> None:
    paths, prepared, made, store = world(tmp_path)
    commit(tmp_path)
    (tmp_path / "context" / "lab-engine" / "tree" / "a.py").write_text("changed")
    described = describe(paths, prepared, prepared.images["lab-engine"], made, store)
    assert described.commit is None
    assert described.context["lab-engine/tree/a.py"] == hashlib.sha256(b"changed").hexdigest()

"""What is installed in an image, from a directory, a tar and layers; layers hide what lies below them."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile

import pytest
from built_images import ROOT_FILES, write_root

from trispark.errors import TrisparkError
from trispark.images import root_inventory
from trispark.images.root_inventory import (
    DebianPackage,
    PythonDist,
    inventory_of,
    inventory_of_directory,
    inventory_of_files,
    inventory_of_layers,
)
from trispark_node.canonical import sha256_hex

STATUS = "var/lib/dpkg/status"
SITE = "usr/lib/python3/site-packages"


def archive(entries, prefix="", mode="w") -> bytes:
    """{path: text, None for a directory, or a TarInfo of another kind}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, text in entries.items():
            info = tarfile.TarInfo(prefix + name)
            if text is None:
                info.type = tarfile.DIRTYPE
            elif text == "->":
                info.type, info.linkname = tarfile.SYMTYPE, "/elsewhere"
            else:
                info.size = len(text.encode())
            tar.addfile(info, io.BytesIO((text or "").encode()) if info.isreg() else None)
    return buffer.getvalue()


def layers(*contents):
    return inventory_of_layers([tarfile.open(fileobj=io.BytesIO(archive(each))) for each in contents])


def test_packages_and_distributions(tmp_path):
    found = inventory_of(write_root(tmp_path))
    assert found.distribution == "debian"
    assert found.packages == (
        DebianPackage("libc6", "2.36-9", "amd64"),
        DebianPackage("tzdata", "2024a-0+deb12u1", "all"),
    )
    record = sha256_hex(ROOT_FILES[f"{SITE}/numpy-2.4.0.dist-info/RECORD"].encode())
    assert found.dists == (
        PythonDist("numpy", "2.4.0", f"{SITE}/numpy-2.4.0.dist-info", record),
        PythonDist("typing-ext", "1", "opt/x/Typing_Ext-1.dist-info", None),
    )


@pytest.mark.parametrize(("prefix", "mode"), [("", "w"), ("./", "w"), ("/", "w"), ("./", "w:gz"), ("", "w:xz")])
def test_a_tar_in_any_order_says_the_same_as_a_directory(tmp_path, prefix, mode):
    names = list(ROOT_FILES)
    random.Random(prefix + mode).shuffle(names)
    path = tmp_path / "root.tar"
    path.write_bytes(archive({name: ROOT_FILES[name] for name in names}, prefix, mode))
    assert inventory_of(path) == inventory_of_directory(write_root(tmp_path / "root"))


def test_an_upper_layer_replaces_and_hides():
    lower = dict(ROOT_FILES)
    newer = ROOT_FILES[STATUS].replace("2.36-9", "2.36-10")
    found = layers(lower, {STATUS: newer, f"{SITE}/.wh.numpy-2.4.0.dist-info": ""})
    assert [each.version for each in found.packages] == ["2.36-10", "2024a-0+deb12u1"]
    assert [each.name for each in found.dists] == ["typing-ext"]


OPAQUE = ".wh..wh..opq"


@pytest.mark.parametrize(
    ("upper", "dists"),
    [
        ({f"{SITE}/{OPAQUE}": ""}, ["typing-ext"]),
        ({OPAQUE: ""}, []),
        ({SITE: "->"}, ["typing-ext"]),
        ({SITE: "a file"}, ["typing-ext"]),
        ({SITE: None}, ["numpy", "typing-ext"]),
        ({"opt/.wh.x": ""}, ["numpy"]),
        ({"opt/.wh.xy": ""}, ["numpy", "typing-ext"]),
        # What a layer adds itself is not hidden by its own removals, wherever they stand.
        ({f"{SITE}/a-1.dist-info/METADATA": "Name: a\nVersion: 1\n", f"{SITE}/{OPAQUE}": ""}, ["a", "typing-ext"]),
    ],
)
def test_what_a_layer_hides(upper, dists):
    assert [each.name for each in layers(ROOT_FILES, upper).dists] == dists


def test_images_without_a_package_manager_list_their_packages_apart():
    found = layers(
        {
            "var/lib/dpkg/status.d/tzdata": "Package: tzdata\nVersion: 1\nArchitecture: all\n",
            "var/lib/dpkg/status.d/tzdata.md5sums": "no stanza\n",
            "usr/lib/os-release": 'ID="ubuntu"\n',
        }
    )
    assert (found.distribution, found.packages) == ("ubuntu", (DebianPackage("tzdata", "1", "all"),))


def test_links_lead_nowhere(tmp_path):
    outside = write_root(tmp_path / "outside")
    root = tmp_path / "root"
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / STATUS).symlink_to(outside / STATUS)
    (root / "opt").symlink_to(outside / "opt")
    found = inventory_of(root)
    assert (found.packages, found.dists) == ((), ())


@pytest.mark.parametrize(
    "entries",
    [
        {STATUS: "Package: a\nStatus: install ok installed\nVersion: 1\n"},
        {f"{SITE}/a-1.dist-info/METADATA": "Name: a\n"},
        {f"{SITE}/a-1.dist-info/METADATA": ""},
        {"../etc/os-release": "ID=x\n"},
        {f"a/../../{STATUS}": "x"},
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path, entries):
    path = tmp_path / "root.tar"
    path.write_bytes(archive(entries))
    with pytest.raises(TrisparkError) as caught:
        inventory_of(path)
    assert (caught.value.id, caught.value.where) == ("TS-PROVENANCE-ROOT", str(path))


def test_files_of_layers_lowest_first(tmp_path):
    paths = [tmp_path / "one.tar", tmp_path / "two.tar"]
    newer = {STATUS: ROOT_FILES[STATUS].replace("2.36-9", "2.36-10")}
    for path, entries in zip(paths, (ROOT_FILES, newer), strict=True):
        path.write_bytes(archive(entries))
    assert inventory_of(*paths).packages[0].version == "2.36-10"
    assert inventory_of(*reversed(paths)).packages[0].version == "2.36-9"
    assert inventory_of(*paths).dists == inventory_of(paths[0]).dists


@pytest.mark.parametrize("content", [None, b"no tar", archive(ROOT_FILES)[:700]])
def test_what_is_no_root_file_system(tmp_path, content):
    path = tmp_path / "root.tar"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrisparkError, match="TS-PROVENANCE-ROOT"):
        inventory_of(path)


@pytest.mark.parametrize("bound", ["MOST_BYTES", "MOST_FILES"])
def test_sizes_and_numbers_have_a_bound(tmp_path, monkeypatch, bound):
    monkeypatch.setattr(root_inventory, bound, 2)
    path = tmp_path / "root.tar"
    path.write_bytes(archive(ROOT_FILES))
    for root in (path, write_root(tmp_path / "root")):
        with pytest.raises(TrisparkError, match="TS-PROVENANCE-ROOT"):
            inventory_of(root)


def test_another_name_of_a_file_is_a_package_too(tmp_path):
    """As an installer leaves them that links from its cache."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        content = b"Name: sgl-kernel\nVersion: 0.4.7\n"
        held = tarfile.TarInfo("root/.cache/uv/1/METADATA")
        held.size = len(content)
        tar.addfile(held, io.BytesIO(content))
        link = tarfile.TarInfo("usr/lib/python3/sgl_kernel-0.4.7.dist-info/METADATA")
        link.type, link.linkname = tarfile.LNKTYPE, held.name
        tar.addfile(link)
    path = tmp_path / "layer.tar"
    path.write_bytes(data.getvalue())
    (found,) = root_inventory.inventory_of(path).dists
    assert (found.name, found.version) == ("sgl-kernel", "0.4.7")


def test_what_waits_or_is_broken_is_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "fifo.tar")
    packed = bytearray(gzip.compress(random.Random(1).randbytes(200_000)))
    packed[5000:6000] = b"\xff" * 1000
    (tmp_path / "broken.tar.gz").write_bytes(packed)
    odd = tmp_path / "root" / os.fsdecode(b"x\xff.dist-info")
    odd.mkdir(parents=True)
    (odd / "METADATA").write_text("Name: a\nVersion: 1\n")
    for name in ("fifo.tar", "broken.tar.gz", "root"):
        with pytest.raises(TrisparkError) as caught:
            root_inventory.inventory_of(tmp_path / name)
        assert caught.value.id == "TS-PROVENANCE-ROOT"


def test_all_files_together_have_a_bound(tmp_path, monkeypatch):
    write_root(tmp_path)
    monkeypatch.setattr(root_inventory, "MOST_TOTAL", 100)
    with pytest.raises(TrisparkError, match="more than 100 bytes"):
        root_inventory.inventory_of(tmp_path)


class Counted(io.BytesIO):
    """`given`: bytes that were read of it, also those that were read twice."""

    given = 0

    def read(self, size=-1, /):
        data = super().read(size)
        self.given += len(data)
        return data


def test_a_compressed_layer_is_unpacked_once():
    """To go back in one means to begin again, and a layer of an engine has gigabytes."""
    noise = random.Random(5)
    entries = {}
    for number in range(10):
        entries[f"a{number}"] = noise.randbytes(200_000).hex()
        entries[f"b/x{number}-1.dist-info/METADATA"] = f"Name: x{number}\nVersion: 1\n"
    file = Counted(archive(entries, mode="w:gz"))
    size = len(file.getvalue())
    found = inventory_of_files([file])
    assert [each.name for each in found.dists] == [f"x{number}" for number in range(10)]
    assert file.given < 1.5 * size
    assert file.closed


def test_a_removal_is_of_layers_below_wherever_it_stands():
    """A file of its own layer stays, whether the removal comes before or after it."""
    below = {
        "opt/a-1.dist-info/METADATA": "Name: a\nVersion: 1\n",
        "opt/b-1.dist-info/METADATA": "Name: b\nVersion: 1\n",
    }
    own = {"opt/c-1.dist-info/METADATA": "Name: c\nVersion: 1\n"}
    for above in ({"opt/.wh..wh..opq": "", **own}, {**own, "opt/.wh..wh..opq": ""}):
        assert [each.name for each in layers(below, above).dists] == ["c"]

"""A layer's bytes depend on its files alone."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.errors import TrisparkError
from trispark.images.layers import EPOCH, write_layer


@dataclass(frozen=True)
class Entry:
    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    mtime: float = EPOCH + 5
    owner: str = "root"
    pax: dict[str, str] = field(default_factory=dict)


def tar_of(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:", format=format) as tar:
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            member.type, member.linkname, member.mode = entry.kind, entry.link, entry.mode
            member.mtime, member.uname, member.gname = entry.mtime, entry.owner, entry.owner
            member.size = len(entry.data)
            member.pax_headers = dict(entry.pax)
            tar.addfile(member, io.BytesIO(entry.data))
    target.seek(0)
    return target


def written(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    layer = write_layer(tar_of(*entries, format=format), target)
    assert layer.size == len(target.getvalue())
    return target.getvalue()


def read(data: bytes) -> dict[str, tuple[bytes, bytes | None, str]]:
    """{name: (type, content through links, link)} as any reader of tars sees it."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        found = {}
        for member in tar.getmembers():
            content = None if member.issym() else tar.extractfile(member)
            found[member.name] = (member.type, content.read() if content else None, member.linkname)
        return found


NAMES = st.sampled_from(
    ["a", "a-b", "a/b", "a/c", "b", "ünï", "deep/" * 30 + "name", "a.wh", ".wh.a", "a/.wh..wh..opq"]
)
ENTRIES = st.lists(
    st.builds(Entry, NAMES, st.binary(max_size=40), mode=st.sampled_from([0o644, 0o755, 0o4755])),
    unique_by=lambda entry: entry.name,
    max_size=8,
)


@given(ENTRIES, st.randoms(use_true_random=False), st.floats(EPOCH, EPOCH * 1.5), st.text(max_size=5))
def test_order_time_and_owners_names_make_no_difference(
    entries: list[Entry], random: Random, time: float, owner: str
) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)
    later = [
        Entry(f"./{each.name}", each.data, mode=each.mode, mtime=time, owner=owner.replace("\0", ""))
        for each in shuffled
    ]
    assert written(*later) == written(*entries)
    assert {name: content for name, (_, content, _) in read(written(*entries)).items()} == {
        each.name: each.data for each in entries
    }


@given(ENTRIES.filter(bool), st.data())
def test_a_changed_byte_a_changed_mode_and_a_changed_name_make_one(entries: list[Entry], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(entries) - 1))
    old = entries[place]
    changes = [
        Entry(old.name, old.data + b"x", mode=old.mode),
        Entry(old.name, old.data, mode=old.mode ^ 0o100),
        Entry(old.name + "2", old.data, mode=old.mode),
    ]
    for changed in changes:
        assert written(*entries[:place], changed, *entries[place + 1 :]) != written(*entries)


def test_times_before_the_epoch_stay() -> None:
    """Compiled files of packages are valid only with their sources' times."""
    early, late = written(Entry("a", mtime=EPOCH - 9)), written(Entry("a", mtime=EPOCH + 9))
    times = []
    for data in (early, late):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            times.append(tar.getmembers()[0].mtime)
    assert times == [EPOCH - 9, EPOCH]


@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_whichever_name_of_a_file_was_packed_first(first: str) -> None:
    others = [name for name in ("a", "b", "c") if name != first]
    linked = written(Entry(first, b"data"), *(Entry(name, kind=tarfile.LNKTYPE, link=f"./{first}") for name in others))
    assert linked == written(Entry("a", b"data"), *(Entry(n, kind=tarfile.LNKTYPE, link="a") for n in ("b", "c")))
    assert {name: link for name, (_, _, link) in read(linked).items()} == {"a": "", "b": "a", "c": "a"}
    assert {content for _, content, _ in read(linked).values()} == {b"data"}


def test_directories_links_and_devices_stay_what_they_are() -> None:
    entries = (
        Entry("d/", kind=tarfile.DIRTYPE, mode=0o750),
        Entry("d/l", kind=tarfile.SYMTYPE, link="../target"),
        Entry("d/.wh.gone"),
        Entry("n", kind=tarfile.CHRTYPE),
    )
    found = read(written(*reversed(entries)))
    assert list(found) == ["d", "d/.wh.gone", "d/l", "n"]
    assert found["d/l"][2] == "../target"
    assert [kind for kind, _, _ in found.values()] == [
        tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE
    ]  # fmt: skip


def test_capabilities_stay_and_other_headers_go() -> None:
    capability = {"SCHILY.xattr.security.capability": "cap"}
    plain = written(Entry("ping", b"x", pax=capability))
    assert plain == written(
        Entry("ping", b"x", pax={**capability, "LIBARCHIVE.creationtime": "12.5", "atime": "17.25"})
    )
    assert plain != written(Entry("ping", b"x"))


def test_the_format_of_the_tar_makes_no_difference() -> None:
    entries = (Entry("x" * 150, b"1"), Entry("d/", kind=tarfile.DIRTYPE), Entry("d/e", b"2"))
    assert written(*entries, format=tarfile.GNU_FORMAT) == written(*entries)


def test_of_several_members_of_one_name_the_last_counts() -> None:
    assert written(Entry("a", b"old"), Entry("b"), Entry("a", b"new")) == written(Entry("a", b"new"), Entry("b"))


@pytest.mark.parametrize(
    "source",
    [
        io.BytesIO(b"no tar at all" * 100),
        tar_of(Entry("a", kind=tarfile.LNKTYPE, link="nowhere")),
        tar_of(Entry("a", kind=tarfile.LNKTYPE, link="b"), Entry("b", kind=tarfile.LNKTYPE, link="a")),
    ],
    ids=["no tar", "link to nothing", "links in a ring"],
)
def test_what_is_no_layer_is_refused_by_name(source: io.BytesIO) -> None:
    with pytest.raises(TrisparkError) as refused:
        write_layer(source, io.BytesIO())
    assert refused.value.id == "TS-IMAGES-LAYER"

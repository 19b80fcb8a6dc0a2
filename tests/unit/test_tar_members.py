"""Tars that are made to keep a reader for ever, or to end it with a traceback."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from trispark_node.errors import AgentError
from trispark_node.image_archive import Archive
from trispark_node.tar_members import members, open_tar


def header(name: str, **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def with_pax(**headers: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = headers
        tar.addfile(info)
    return data.getvalue()


def negative() -> bytes:
    """A size below zero leads back to the first header."""
    data = bytearray(header("a") + header("b"))
    size = (-1024).to_bytes(12, "big", signed=True)
    data[512 + 124 : 512 + 136] = size
    checksum = 256 + sum(data[512 : 512 + 148]) + sum(data[512 + 156 : 1024])
    data[512 + 148 : 512 + 156] = f"{checksum:06o}\0 ".encode()
    return bytes(data)


HOSTILE = {
    "a size below zero": negative(),
    "names without a member": header("././@LongLink", type=tarfile.GNUTYPE_LONGNAME) * 3000 + b"\0" * 1024,
    "a sparse size that is no number": with_pax(**{"GNU.sparse.size": "x"}),
    "a sparse map that is no number": with_pax(**{"GNU.sparse.map": "x"}),
    "a size that no file has": with_pax(size="9" * 30),
    "a header as large as a disk": header("x", type=tarfile.XHDTYPE, size=2**40),
    "a sparse map as long as the file": header("x", type=tarfile.GNUTYPE_SPARSE) + b"1" * 2**16,
    "a sparse map of the later kind": with_pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + b"9\n" * 2**16,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tar_ends_as_a_tar_error(data: bytes) -> None:
    with pytest.raises(tarfile.TarError), open_tar(io.BytesIO(data)) as tar:  # noqa: PT012
        for number, _ in enumerate(members(tar)):
            assert number < 100, "it never ends"


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_an_archive_of_that_kind_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(data)
    with pytest.raises(AgentError) as caught:
        Archive(str(tmp_path / "image.tar"))
    assert caught.value.id == "TS-AGENT-IMAGE-ARCHIVE"


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_is_read_whole_has_a_bound(kind: bytes) -> None:
    with (
        pytest.raises(tarfile.TarError, match="a header of 1048577 bytes"),
        open_tar(io.BytesIO(header("x", type=kind, size=2**20 + 1) + bytes(2**21))) as tar,
    ):
        list(members(tar))


def test_a_sparse_member_is_refused_and_not_read() -> None:
    for name in ("a sparse map as long as the file", "a sparse map of the later kind"):
        with pytest.raises(tarfile.TarError, match="a sparse member"), open_tar(io.BytesIO(HOSTILE[name])) as tar:
            list(members(tar))


def test_members_of_a_good_tar_come_in_their_order() -> None:
    data = header("a") + header("b") + b"\0" * 1024
    with open_tar(io.BytesIO(data)) as tar:
        assert [each.name for each in members(tar)] == ["a", "b"]

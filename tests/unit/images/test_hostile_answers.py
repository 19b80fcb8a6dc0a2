"""Answers of a registry or an index that nobody meant well: each is an error by name, within its time and size."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trispark.errors import TrisparkError
from trispark.images.image_members import ImageMembers, RegistryUnreachable
from trispark.images.package_index import PackageIndex, UrllibHttp, read_answer
from trispark.images.registry import Answer, Registry

DEEP = b"[" * 100_000


class Body(io.BytesIO):
    status = 200
    headers: ClassVar = {"Content-Type": "application/json"}


class Says:
    """Answers everything with these bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def get(self, url: str, headers: Mapping[str, str]) -> Body:
        return Body(self.body)


HERE = {"platform": {"os": "linux", "architecture": "arm64"}}
MANIFESTS = {
    "no list": {"manifests": 5},
    "numbers": {"manifests": [5]},
    "a platform that is a text": {"manifests": [{"platform": "linux"}]},
    "no digest": {"manifests": [HERE]},
    "a digest that leads elsewhere": {"manifests": [{**HERE, "digest": "../../tags/list"}]},
    "a configuration that is no digest": {"config": {"digest": "sha256:x"}},
    "too deep": DEEP,
    "infinite": b'{"config": 1e999}',
}


@pytest.mark.parametrize("said", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_of_another_form_is_no_answer(said: object) -> None:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    with pytest.raises(RegistryUnreachable):
        ImageMembers(Says(body)).member("registry.example/x", digest, "arm64")


@pytest.mark.parametrize(
    "body",
    [
        b'{"files":' + DEEP,
        b'{"files": [{"filename": "a.whl", "url": "http://[", "hashes": {}}]}',
        b'{"files": {"a": 1}}',
        b"[]",
    ],
    ids=["too deep", "an address without form", "no list", "no object"],
)
def test_an_index_of_another_form_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(TrisparkError) as caught:
        PackageIndex("http://index.example/simple", Says(body)).files("a")
    assert caught.value.id == "TS-IMAGES-INDEX"


def test_no_address_of_a_peer_is_a_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for address in ((tmp_path / "secret").as_uri(), "http://[", "data:,x", "ftp://127.0.0.1/x"):
        with pytest.raises(OSError, match="an address that cannot be used"):
            UrllibHttp().get(address, {})


def test_an_answer_that_drips_or_does_not_end_is_given_up() -> None:
    class Drips(Body):
        def read(self, amount: int | None = -1, /) -> bytes:
            return b"x"

    with pytest.raises(TimeoutError, match="no whole answer"):
        read_answer(Drips(), 1000, seconds=0)
    endless = Drips()
    with pytest.raises(OSError, match="more than 1000 bytes"):
        read_answer(endless, 1000)
    assert endless.closed


@pytest.mark.parametrize("place", ["http://[", "/v2/é"])
def test_a_registry_that_sends_an_upload_nowhere_is_told_by_name(place: str, tmp_path: Path) -> None:
    from trispark.images.oci import MANIFEST_TYPE, BlobStore, OciImage

    class Transport:
        def call(self, method: str, path: str, **_: Any) -> Answer:
            if method == "PUT":
                try:
                    path.encode("ascii")
                except ValueError as error:  # as HttpTransport does it
                    raise OSError(str(error)) from error
            return Answer(202 if method == "POST" else 404, place, "", b"")

    store = BlobStore(tmp_path)
    blob = store.add_bytes(MANIFEST_TYPE, b"{}")
    with pytest.raises(TrisparkError) as caught:
        Registry("127.0.0.1:1", Transport()).push(OciImage(blob, blob, ()), store, "x", "y")
    assert caught.value.id == "TS-IMAGES-PUSH"

"""An image from an archive keeps its digest, as the Engine pulls it from the agent; what is not whole is refused."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import socket
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from stored_image import StoredImage, digest_of

from trispark_node import cli
from trispark_node.docker_client import Image
from trispark_node.errors import AgentError
from trispark_node.image_archive import Archive, _media_type, served

ARM = "linux/arm64"
"""Of the fake node."""
LAYERS = {"base": b"a layer\n" * 300_000, "own": b"another\n"}


class Archived:
    """An image whose layers are there, and the blobs of its layout."""

    def __init__(self, platform: str = ARM) -> None:
        self.image = StoredImage(platform, {name: len(data) for name, data in LAYERS.items()}, LAYERS)
        self.blobs = {digest_of(data): data for data in (self.image.manifest, self.image.config, *LAYERS.values())}
        self.digest = digest_of(self.image.manifest)

    def write(self, path: Path, changed: Mapping[str, bytes | None] | None = None) -> str:
        """As an OCI layout; `changed`: blobs with another content, or none."""
        with tarfile.open(path, "w") as tar:
            files = {f"blobs/sha256/{digest[7:]}": data for digest, data in {**self.blobs, **(changed or {})}.items()}
            for name, data in {"oci-layout": b"{}", **files}.items():
                if data is not None:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return str(path)


def fetch(host: str, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.fixture
def engine(bench: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fake Engine pulls over HTTP and believes digests alone, as a real one does; what it fetched, by digest."""
    fetched: list[str] = []

    def blob(repository: str, kind: str, digest: str) -> bytes:
        host, _, name = repository.partition("/")
        status, body, headers = fetch(host, f"/v2/{name}/{kind}/{digest}")
        assert (status, headers["Docker-Content-Digest"]) == (200, digest)
        assert f"sha256:{hashlib.sha256(body).hexdigest()}" == digest
        fetched.append(digest)
        return body

    def pull(repository: str, digest: str) -> None:
        host, _, name = repository.partition("/")
        assert fetch(host, "/v2/")[0] == 200
        assert fetch(host, f"/v2/{name}/manifests/{digest}", "HEAD")[1] == b""
        assert fetch(host, f"/v2/other/manifests/{digest}")[0] == 404
        assert fetch(host, f"/v2/{name}/blobs/sha256:{'0' * 64}")[0] == 404
        assert fetch(host, "/etc/passwd")[0] == 404
        manifest = json.loads(blob(repository, "manifests", digest))
        for each in (manifest["config"], *manifest["layers"]):
            blob(repository, "blobs", each["digest"])
        reference = f"{repository}@{digest}"
        bench.docker.images[reference] = Image(manifest["config"]["digest"], (reference,), {}, ARM)

    monkeypatch.setattr(bench.docker, "pull", pull)
    return fetched


def on_a_free_port(call: Callable[[str], Any]) -> tuple[str, Any]:
    """(host, answer) of the first port that nobody else has."""
    for port in range(20100, 65000):
        try:
            return f"127.0.0.1:{port}", call(f"127.0.0.1:{port}")
        except AgentError as error:
            if error.id != "TS-AGENT-IMAGE-PORT":
                raise
    raise AssertionError("no port is free")


def ask(bench: Any, archived: Archived, archive: str, **more: Any) -> tuple[str, dict[str, Any]]:
    def call(host: str) -> dict[str, Any]:
        request = {"image": f"{host}/e@{archived.digest}", "archive": archive, **more}
        answer, _ = cli.answer(bench.node, "image-ensure", json.dumps(request))
        if not answer["ok"]:
            error = answer["error"]
            raised = {name: error[name] for name in ("where", "expected", "observed", "remedy")}
            raise AgentError(error["id"], error["what"], **raised)
        return dict(answer)

    return on_a_free_port(call)


def test_the_engine_pulls_it_from_the_agent_under_its_digest(bench: Any, engine: list[str], tmp_path: Path) -> None:
    archived = Archived()
    path = archived.write(tmp_path / "e.tar")
    host, answer = ask(bench, archived, path)
    assert (answer["changed"], answer["pulled"]) == (True, True)
    assert answer["bytes_to_pull"] == sum(map(len, LAYERS.values()))
    assert engine == [archived.digest, digest_of(archived.image.config), *map(digest_of, LAYERS.values())]
    image = bench.docker.image(f"{host}/e@{archived.digest}")
    assert image.digests == (f"{host}/e@{archived.digest}",)
    with pytest.raises(ConnectionRefusedError):
        fetch(host, "/v2/")
    Path(path).unlink()
    assert bench.ask("image-ensure", image=f"{host}/e@{archived.digest}", archive=path)["changed"] is False


def test_check_mode_serves_nothing(bench: Any, engine: list[str], tmp_path: Path) -> None:
    archived = Archived()
    _, answer = ask(bench, archived, archived.write(tmp_path / "e.tar"), check=True)
    assert (answer["changed"], answer["pulled"], engine) == (True, False, [])


@pytest.mark.parametrize("part", ["manifest", "config", "base", "own"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_blob_that_lacks_or_is_another_one_is_refused_before_the_engine_is_asked(
    bench: Any, engine: list[str], tmp_path: Path, part: str, gone: bool
) -> None:
    archived = Archived()
    data = LAYERS[part] if part in LAYERS else getattr(archived.image, part)
    changed = {digest_of(data): None if gone else bytes([data[0] ^ 1]) + data[1:]}
    path = archived.write(tmp_path / "e.tar", changed)
    with pytest.raises(AgentError) as caught:
        ask(bench, archived, path)
    assert (caught.value.id, caught.value.where, engine) == ("TS-AGENT-IMAGE-ARCHIVE", path, [])
    assert digest_of(data) in caught.value.expected or part == "config"


@pytest.mark.parametrize("kind", ["of docker save", "compressed", "cut off", "absent", "no tar"])
def test_an_archive_of_another_kind_is_refused(bench: Any, engine: list[str], tmp_path: Path, kind: str) -> None:
    archived, path = Archived(), tmp_path / "e.tar"
    archived.write(path)
    whole = path.read_bytes()
    if kind == "of docker save":
        with tarfile.open(path, "w") as tar:
            for name in ("manifest.json", f"{archived.digest[7:]}.json", "0/layer.tar"):
                tar.addfile(tarfile.TarInfo(name))
    elif kind == "absent":
        path.unlink()
    else:
        path.write_bytes({"compressed": gzip.compress(whole), "cut off": whole[:5000], "no tar": b"x" * 5000}[kind])
    with pytest.raises(AgentError) as caught:
        ask(bench, archived, str(path))
    assert (caught.value.id, engine) == ("TS-AGENT-IMAGE-ARCHIVE", [])
    assert "docker save keeps no manifest" in caught.value.remedy


def test_platform_and_disk_are_judged_as_of_a_registry(bench: Any, engine: list[str], tmp_path: Path) -> None:
    other = Archived("linux/amd64")
    with pytest.raises(AgentError, match="TS-AGENT-IMAGE-PLATFORM"):
        ask(bench, other, other.write(tmp_path / "other.tar"))
    bench.docker.free_bytes = 1000
    with pytest.raises(AgentError, match="TS-AGENT-IMAGE-SPACE"):
        ask(bench, Archived(), Archived().write(tmp_path / "e.tar"))
    assert engine == []


def test_a_port_that_somebody_has_is_named(bench: Any, engine: list[str], tmp_path: Path) -> None:
    archived = Archived()
    with socket.create_server(("127.0.0.1", 0)) as held:
        image = f"127.0.0.1:{held.getsockname()[1]}/e@{archived.digest}"
        error = bench.refused("image-ensure", image=image, archive=archived.write(tmp_path / "e.tar"))
    assert (error["id"], error["where"]) == ("TS-AGENT-IMAGE-PORT", image.partition("@")[0])


@pytest.mark.parametrize("name", ["registry:5000/e", "localhost:5055/e", "127.0.0.1/e", "127.0.0.1:80/e"])
def test_an_image_of_an_archive_is_named_after_a_port_of_the_node(bench: Any, name: str) -> None:
    error = bench.refused("image-ensure", image=f"{name}@sha256:{'1' * 64}", archive="/e.tar")
    assert (error["id"], "127.0.0.1:PORT/" in error["expected"]) == ("TS-AGENT-REQUEST", True)


def test_without_the_archive_the_way_to_bring_it_is_named(bench: Any) -> None:
    bench.docker.pull_errors = ["connection refused"] * 9
    error = bench.refused("image-ensure", image=f"127.0.0.1:5055/e@sha256:{'1' * 64}")
    assert (error["id"], "archive" in error["remedy"]) == ("TS-AGENT-IMAGE-PULL", True)


def test_a_fifo_in_the_archives_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "image.tar")
    with pytest.raises(AgentError) as caught:
        Archive(str(tmp_path / "image.tar"))
    assert caught.value.id == "TS-AGENT-IMAGE-ARCHIVE"


def test_a_blob_of_another_size_than_the_manifest_says_is_not_read(tmp_path: Path) -> None:
    made = Archived()
    archive = Archive(made.write(tmp_path / "image.tar"))
    (digest, *_) = [digest_of(data) for data in LAYERS.values()]
    with pytest.raises(AgentError, match="of 5 bytes"):
        archive.verify({digest: 5})
    archive.close()


def test_who_reads_on_after_the_end_gets_no_other_file(tmp_path: Path) -> None:
    made = Archived()
    archive = Archive(made.write(tmp_path / "image.tar"))
    archive.close()
    with (tmp_path / "secret").open("wb+", buffering=0) as secret:  # has the number that the archive had
        secret.write(b"x" * 2**20)
        with pytest.raises(OSError, match="Bad file descriptor"):
            list(archive.pieces(made.digest))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_an_archive_that_is_cut_off_meanwhile_ends_the_answer(tmp_path: Path) -> None:
    made = Archived()
    path = made.write(tmp_path / "image.tar")
    archive = Archive(path)
    digest = digest_of(LAYERS["base"])
    host = f"127.0.0.1:{free_port()}"
    with served(archive, f"{host}/lab"):
        os.truncate(path, Path(path).stat().st_size // 2)
        with pytest.raises(http.client.IncompleteRead):
            fetch(host, f"/v2/lab/blobs/{digest}")
    archive.close()


def test_an_engine_that_hangs_up_leaves_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = Archived()
    archive = Archive(made.write(tmp_path / "image.tar"))
    port = free_port()
    with served(archive, f"127.0.0.1:{port}/lab"):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(f"GET /v2/lab/blobs/{digest_of(LAYERS['base'])} HTTP/1.1\r\n\r\n".encode())
                connection.recv(10)
        fetch(f"127.0.0.1:{port}", "/v2/")
    archive.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("said", ["a\r\nX-Evil: y", "\u2028", 5, ["application/x"]])
def test_what_cannot_be_a_type_comes_into_no_header(said: object) -> None:
    assert _media_type(json.dumps({"mediaType": said}).encode()) == "application/vnd.oci.image.manifest.v1+json"

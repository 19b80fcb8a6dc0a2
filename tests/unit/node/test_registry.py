"""What a registry says of an image is believed by its digest alone; what cannot be known is nothing, never a guess."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_image import BASE, REFERENCE, StoredImage, digest_of

from trispark_node.registry import MAX_BYTES, Layer, Remote, UrllibReader, _read_within, look

ARM, AMD = "linux/arm64", "linux/amd64"


class Answers(dict[str, bytes]):
    """A reader of what it holds, under its URLs."""

    def get(self, url: str, accept: str, timeout_s: float) -> bytes:  # type: ignore[override]
        assert "manifest.v2+json" in accept
        assert timeout_s > 0
        if url not in self:
            raise ConnectionRefusedError(111, url)
        return self[url]


def test_an_image_for_one_platform() -> None:
    image = StoredImage(ARM, {"one": 100, "two": 20})
    assert look(Answers(image.served()), image.reference, ARM) == Remote((ARM,), image.layers)
    assert look(Answers(image.served()), image.reference, AMD) == Remote((ARM,), ())


def test_an_index_names_its_platforms_and_gives_the_layers_of_one() -> None:
    arm, amd = StoredImage(ARM, {"one": 100}), StoredImage(AMD, {"one": 300})
    reference, served = StoredImage.index(arm, amd)
    assert look(Answers(served), reference, ARM) == Remote((AMD, ARM), arm.layers)
    assert look(Answers(served), reference, "linux/riscv64") == Remote((AMD, ARM), ())


@pytest.mark.parametrize("part", range(2), ids=["manifest", "configuration"])
@pytest.mark.parametrize("change", ["other", "absent", "no json", "list"])
def test_what_is_not_what_its_digest_names_says_nothing(part: int, change: str) -> None:
    image = StoredImage(ARM, {"one": 100})
    served = image.served()
    url = list(served)[part]
    if change == "absent":
        del served[url]
    else:
        served[url] = {"other": served[url] + b" ", "no json": b"<html>", "list": b"[]"}[change]
    assert look(Answers(served), image.reference, ARM) is None


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"layers": []},
        {"config": {"digest": "sha256:0"}, "layers": []},
        {"manifests": [{"digest": "x"}]},
        {"manifests": 3},
        [],
        {"schemaVersion": 1, "fsLayers": []},
    ],
)
def test_a_manifest_of_another_shape_says_nothing(manifest: Any) -> None:
    body = json.dumps(manifest).encode()
    assert look(Answers({f"{BASE}/manifests/{digest_of(body)}": body}), f"{REFERENCE}@{digest_of(body)}", ARM) is None


@pytest.mark.parametrize(
    ("repository", "urls"),
    [
        ("registry:5000/a/b", ["https://registry:5000/v2/a/b", "http://registry:5000/v2/a/b"]),
        ("localhost/b", ["https://localhost/v2/b", "http://localhost/v2/b"]),
        ("docker.io/lmsysorg/sglang", ["https://registry-1.docker.io/v2/lmsysorg/sglang"]),
        ("lmsysorg/sglang", ["https://registry-1.docker.io/v2/lmsysorg/sglang"]),
        ("debian", ["https://registry-1.docker.io/v2/library/debian"]),
        ("docker.io/debian", ["https://registry-1.docker.io/v2/library/debian"]),
    ],
)
def test_where_a_repository_is_asked_for(repository: str, urls: list[str]) -> None:
    asked: list[str] = []

    class Nobody:
        def get(self, url: str, accept: str, timeout_s: float) -> bytes:
            asked.append(url)
            raise TimeoutError

    digest = "sha256:" + "1" * 64
    assert look(Nobody(), f"{repository}@{digest}", ARM) is None
    assert asked == [f"{url}/manifests/{digest}" for url in urls]


LISTS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5)


@given(wanted=LISTS, held=st.lists(LISTS, max_size=4))
def test_only_layers_on_top_of_the_same_layers_are_shared(wanted: list[str], held: list[list[str]]) -> None:
    remote = Remote((ARM,), tuple(Layer(name, 10**index) for index, name in enumerate(wanted)))
    missing = remote.missing_bytes(tuple(map(tuple, held)))
    kept = [i for i in range(len(wanted)) if any(layers[: i + 1] == wanted[: i + 1] for layers in held)]
    assert missing == sum(10**index for index in range(len(wanted)) if index not in kept)


def test_a_layer_without_a_diff_id_is_shared_with_nobody() -> None:
    assert Remote((ARM,), (Layer("", 7),)).missing_bytes((("",),)) == 7


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """(address, {path: body}) of a registry on this machine."""
    bodies: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_arguments: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{made.server_port}", bodies
        made.shutdown()
        thread.join()


def test_a_real_registry_without_tls_is_read(server: tuple[str, dict[str, bytes]]) -> None:
    """HTTPS is tried first, and fails there."""
    address, bodies = server
    image = StoredImage(ARM, {"one": 100})
    bodies |= {url.removeprefix(BASE.removesuffix("/v2/a/b")): body for url, body in image.served().items()}
    reference = image.reference.replace(REFERENCE, f"{address}/a/b")
    assert look(UrllibReader(), reference, ARM) == Remote((ARM,), image.layers)
    assert look(UrllibReader(), reference[:-4] + "0000", ARM) is None


def test_an_endless_answer_is_cut_off_and_says_nothing(server: tuple[str, dict[str, bytes]]) -> None:
    address, bodies = server
    bodies["/big"] = b" " * (MAX_BYTES + 10)
    assert len(UrllibReader().get(f"http://{address}/big", "x", 5)) == MAX_BYTES + 1
    body = b" " * (MAX_BYTES + 10) + b"{}"
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    bodies[f"/v2/a/manifests/{digest}"] = body
    assert look(UrllibReader(), f"{address}/a@{digest}", ARM) is None


def test_a_peer_that_drips_is_given_up() -> None:
    calls = 0

    def read(_amount: int) -> bytes:
        nonlocal calls
        calls += 1
        return b"x"

    with pytest.raises(TimeoutError, match="no whole answer"):
        _read_within(read, 0.0)
    assert calls == 1


@pytest.mark.parametrize("size", ["1e999", "Infinity", "NaN", "1.5", '"7"', "true", "-1"])
def test_a_size_that_is_no_whole_number_says_nothing(size: str) -> None:
    config = json.dumps({"os": "linux", "architecture": "arm64", "rootfs": {"diff_ids": ["sha256:1"]}}).encode()
    named = "sha256:" + hashlib.sha256(config).hexdigest()
    layers = f'[{{"digest": "sha256:1", "size": {size}}}]'
    manifest = f'{{"config": {{"digest": "{named}"}}, "layers": {layers}}}'.encode()
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    held = {digest: manifest, named: config}

    class Reader:
        def get(self, url: str, accept: str, timeout_s: float) -> bytes:
            return held[url.rpartition("/")[2]]

    assert look(Reader(), f"127.0.0.1:5000/lab@{digest}", "linux/arm64") is None

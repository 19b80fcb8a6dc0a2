"""Logins: where they are taken from, where they are sent, and that nobody else and no message gets them."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from served_registry import Served, serving

from trispark.errors import TrisparkError
from trispark.images.oci import MANIFEST_TYPE, BlobStore, OciImage
from trispark.images.registry import HttpTransport, Registry
from trispark.images.registry_login import Login, config_file, login_of

PASSWORD = "no-word-of-it"
BASIC = base64.b64encode(f"builder:{PASSWORD}".encode()).decode()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as registry:
        registry.login = f"builder:{PASSWORD}"
        yield registry


def image_in(store: BlobStore) -> OciImage:
    layer, config = store.add_bytes("layer", b"layer" * 1000), store.add_bytes("config", b"{}")
    named = {"config": config.as_dict(), "layers": [layer.as_dict()]}
    return OciImage(store.add_bytes(MANIFEST_TYPE, json.dumps(named).encode()), config, (layer,))


def pushed(served: Served, tmp_path: Path, login: Login | None) -> str:
    store = BlobStore(tmp_path / "store")
    return Registry(served.address, login=lambda: login).push(image_in(store), store, "fleet/e", "t")


def test_a_login_is_sent_when_it_is_asked_for_and_no_earlier(served: Served, tmp_path: Path) -> None:
    digest = pushed(served, tmp_path, Login(BASIC))
    assert set(served.manifests) == {"t"}
    assert digest
    assert served.given[:2] == ["", f"Basic {BASIC}"]
    assert set(served.given[1:]) == {f"Basic {BASIC}"}


def test_a_token_is_got_once_for_pull_and_push(served: Served, tmp_path: Path) -> None:
    served.scheme = "Bearer"
    pushed(served, tmp_path, Login(BASIC))
    assert set(served.manifests) == {"t"}
    assert served.scopes == ["repository:fleet/e:pull,push"]
    assert served.given[:3] == ["", f"Basic {BASIC}", "Bearer t1"]
    assert set(served.given[2:]) == {"Bearer t1"}, "the password goes to the place of tokens alone"


@pytest.mark.parametrize("uses", range(1, 9))
def test_a_token_that_is_not_valid_any_more_is_got_anew_and_a_blob_sent_whole(
    served: Served, tmp_path: Path, uses: int
) -> None:
    served.scheme, served.token_uses = "Bearer", uses
    pushed(served, tmp_path, Login(BASIC))
    assert set(served.manifests) == {"t"}
    assert b"layer" * 1000 in served.blobs.values()
    assert len(served.scopes) == -(-8 // uses)


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
@pytest.mark.parametrize("login", [None, Login(base64.b64encode(b"builder:wrong").decode())])
def test_a_login_that_is_not_there_or_wrong_is_named(
    served: Served, tmp_path: Path, scheme: str, login: Login | None
) -> None:
    served.scheme = scheme
    with pytest.raises(TrisparkError) as caught:
        pushed(served, tmp_path, login)
    assert caught.value.id == "TS-IMAGES-LOGIN"
    assert served.blobs == {}


@pytest.mark.parametrize(
    "realm",
    ["http://registry.example/token", "ftp://127.0.0.1/token", "/token", "http://[", "http://127.0.0.1@e.example/t",
     "http://127.0.0.1.example/token"],
)  # fmt: skip
def test_a_login_goes_to_no_place_in_the_open(served: Served, tmp_path: Path, realm: str) -> None:
    served.scheme, served.realm = "Bearer", realm
    with pytest.raises(TrisparkError) as caught:
        pushed(served, tmp_path, Login(BASIC))
    assert caught.value.id == "TS-IMAGES-LOGIN"
    assert "https" in caught.value.expected
    assert set(served.given) <= {""}, "nothing was sent"


def test_a_password_is_in_no_message(served: Served, tmp_path: Path) -> None:
    served.status = {"POST": 500}
    with pytest.raises(TrisparkError) as caught:
        pushed(served, tmp_path, Login(BASIC))
    for text in (str(caught.value), repr(Login(BASIC))):
        assert PASSWORD not in text
        assert BASIC not in text


def test_what_is_no_token_is_not_sent(served: Served, tmp_path: Path) -> None:
    served.scheme = "Bearer"
    kept = served.refusal
    for said in (b"{}", b"[]", b"x", b'{"token": 5}', b'{"token": "a\\r\\nHost: b"}'):

        def refusal(path: str, given: str, said: bytes = said) -> Any:
            return (200, {}, said) if path.startswith("/token") else kept(path, given)

        served.refusal = refusal  # type: ignore[method-assign]
        with pytest.raises(TrisparkError) as caught:
            pushed(served, tmp_path, Login(BASIC))
        assert (caught.value.id, "without one" in caught.value.observed) == ("TS-IMAGES-LOGIN", True)


def configured(folder: Path, config: Any) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return {"DOCKER_CONFIG": str(folder)}


HOST = "registry.example:5000"


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v2/"])
def test_a_login_is_that_of_dockers_file(tmp_path: Path, key: str) -> None:
    environment = configured(tmp_path, {"auths": {key: {"auth": BASIC}, "other.example": {"auth": "eDp5"}}})
    assert login_of(HOST, environment) == Login(BASIC)
    assert login_of("third.example", environment) is None


def test_dockers_own_registry_has_a_name_of_its_own(tmp_path: Path) -> None:
    environment = configured(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": BASIC}}})
    assert login_of("registry-1.docker.io", environment) == Login(BASIC)


def test_without_a_file_there_is_no_login(tmp_path: Path) -> None:
    assert login_of(HOST, {"DOCKER_CONFIG": str(tmp_path)}) is None
    assert config_file({"HOME": "/home/x"}) == Path("/home/x/.docker/config.json")
    assert config_file({"HOME": "/home/x", "DOCKER_CONFIG": "/c"}) == Path("/c/config.json")


@pytest.mark.parametrize(
    "config",
    [
        {"credHelpers": {HOST: "pass"}},
        {"credsStore": "desktop"},
        {"credsStore": "desktop", "auths": {HOST: {}}},
        {"auths": {HOST: {"identitytoken": "x"}}},
        {"auths": {HOST: {"auth": "no base64"}}},
        {"auths": {HOST: {"auth": base64.b64encode(b"no colon").decode()}}},
        {"auths": {HOST: {"auth": 5}}},
        "{",
        "[]",
    ],
)
def test_a_login_of_another_kind_is_refused_and_nothing_of_it_shown(tmp_path: Path, config: Any) -> None:
    with pytest.raises(TrisparkError) as caught:
        login_of(HOST, configured(tmp_path, config))
    assert (caught.value.id, str(tmp_path) in caught.value.where) == ("TS-IMAGES-LOGIN", True)


def test_a_fifo_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(TrisparkError, match="TS-IMAGES-LOGIN"):
        login_of(HOST, {"DOCKER_CONFIG": str(tmp_path)})


@pytest.mark.parametrize(
    ("address", "kind", "port"),
    [
        ("registry.example", HTTPSConnection, 443),
        ("registry.example:5000", HTTPSConnection, 5000),
        ("192.0.2.7:5000", HTTPSConnection, 5000),
        ("127.0.0.1.example:5000", HTTPSConnection, 5000),
        ("127.77.0.2:5000", HTTPConnection, 5000),
        ("localhost", HTTPConnection, 80),
        ("[::1]:5000", HTTPConnection, 5000),
    ],
)
def test_plain_http_stays_on_this_machine(address: str, kind: type[Any], port: int) -> None:
    connection = HttpTransport(address)._connection()
    tls = isinstance(connection, HTTPSConnection)
    assert (HTTPSConnection if tls else HTTPConnection, connection.port) == (kind, port)


def test_why_a_registry_hangs_up_while_it_is_sent_to_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")

        thread = threading.Thread(target=refuse)
        thread.start()
        (tmp_path / "blob").touch()
        os.truncate(tmp_path / "blob", 2**28)  # more than sockets hold: what is not read ends the connection
        with (tmp_path / "blob").open("rb") as body:
            answer = HttpTransport(f"127.0.0.1:{listening.getsockname()[1]}").call(
                "PUT", "/v2/x", body=body, headers={"Content-Length": str(2**28)}
            )
        thread.join(30)
        assert (answer.status, answer.body) == (413, b"too large")

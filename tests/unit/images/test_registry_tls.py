"""A registry beyond this machine is asked over TLS: by an authority that is trusted, and under its name.

The name leads to a server on loopback; all else is as it would be: real TLS with certificates made here.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from served_registry import Served, serving

from trispark.errors import TrisparkError
from trispark.images import registry
from trispark.images.oci import MANIFEST_TYPE, BlobStore, OciImage
from trispark.images.registry import Registry

NAME = "registry.example"
Key = ec.EllipticCurvePrivateKey


def certificate(
    subject: str, key: Key, issuer: x509.Certificate | None, signer: Key, days: int = 1
) -> x509.Certificate:
    """Of an authority where there is no issuer, else of a server of this name. It ends `days` from now."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        return built.add_extension(usage, critical=True).sign(signer, hashes.SHA256())
    return built.add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False).sign(
        signer, hashes.SHA256()
    )


class Tls:
    """A registry behind TLS. `trusted`: where the Docker Engine of this machine would have its authority."""

    def __init__(self, served: Served, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.served, self.directory = served, directory
        self.address = f"{NAME}:{served.server.server_port}"
        self.trusted = directory / "certs.d" / self.address / "ca.crt"
        self.asked: list[str] = []
        patch.setattr(registry, "CERTIFICATES", directory / "certs.d")
        connect = socket.create_connection

        def here(address: tuple[str, int], *arguments: Any, **more: Any) -> socket.socket:
            self.asked.append(address[0])
            return connect(("127.0.0.1", address[1]), *arguments, **more)

        patch.setattr(socket, "create_connection", here)

    def begin(self, subject: str, trust: str, days: int = 1) -> None:
        """`trust`: the authority that is trusted: its own, another, or none."""
        key, signer = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        authority = certificate("authority", signer, None, signer)
        pem = serialization.Encoding.PEM
        chain = self.directory / "server.pem"
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain.write_bytes(private + certificate(subject, key, authority, signer, days).public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        server = self.served.server
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        if trust != "none":
            self.trusted.parent.mkdir(parents=True)
            other = ec.generate_private_key(ec.SECP256R1())
            shown = authority if trust == "own" else certificate("authority", other, None, other)
            self.trusted.write_bytes(shown.public_bytes(pem))

    def push(self) -> str:
        store = BlobStore(self.directory / "store")
        layer, config = store.add_bytes("layer", b"layer" * 100_000), store.add_bytes("config", b"{}")
        named = {"config": config.as_dict(), "layers": [layer.as_dict()]}
        manifest = store.add_bytes(MANIFEST_TYPE, json.dumps(named).encode())
        return Registry(self.address).push(OciImage(manifest, config, (layer,)), store, "fleet/e", "t")


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tls]:
    with serving() as served:
        served.server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]  # refused handshakes
        yield Tls(served, tmp_path, monkeypatch)


def test_a_registry_of_the_sites_own_authority_takes_an_image(tls: Tls) -> None:
    tls.begin(NAME, "own")
    digest = tls.push()
    assert set(tls.served.manifests) == {"t"}
    assert digest.startswith("sha256:")
    assert set(tls.asked) == {NAME}


@pytest.mark.parametrize(
    ("subject", "trust", "days", "observed"),
    [
        (NAME, "none", 1, "TLS: unable to get local issuer certificate"),
        (NAME, "another", 1, "TLS: "),
        ("other.example", "own", 1, "TLS: Hostname mismatch"),
        (NAME, "own", -1, "TLS: certificate has expired"),
    ],
    ids=["nobody trusts it", "another authority", "another name", "expired"],
)
def test_a_certificate_that_proves_nothing_ends_the_push_before_a_byte(
    tls: Tls, subject: str, trust: str, days: int, observed: str
) -> None:
    tls.begin(subject, trust, days)
    with pytest.raises(TrisparkError) as refused:
        tls.push()
    assert (refused.value.id, refused.value.where) == ("TS-IMAGES-PUSH", f"{tls.address}/fleet/e")
    assert observed in refused.value.observed
    assert (tls.served.calls, tls.served.blobs, tls.served.manifests) == (0, {}, {})


def test_a_registry_without_tls_is_not_asked_in_the_open(tls: Tls) -> None:
    with pytest.raises(TrisparkError) as refused:
        tls.push()
    assert (refused.value.id, tls.served.blobs) == ("TS-IMAGES-PUSH", {})
    assert "TLS: " in refused.value.observed


@pytest.mark.parametrize("file", ["client.cert", "client.key"])
def test_a_client_certificate_of_the_engine_is_refused_by_name(tls: Tls, file: str) -> None:
    tls.begin(NAME, "own")
    (tls.trusted.parent / file).touch()
    with pytest.raises(TrisparkError) as refused:
        tls.push()
    assert (refused.value.id, refused.value.observed) == ("TS-IMAGES-LOGIN", file)
    assert tls.served.calls == 0
    (tls.trusted.parent / file).unlink()
    assert tls.push().startswith("sha256:")

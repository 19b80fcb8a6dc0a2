"""Asks the lab's registry for the digest of a tag."""

from __future__ import annotations

from typing import Final

from trispark.images.oci import MANIFEST_TYPE
from trispark.images.registry import HttpTransport
from trispark.lab.layout import PUSH_REGISTRY

TIMEOUT_S: Final = 5.0


def split_reference(reference: str) -> tuple[str, str, str]:
    """`host:port/repository:tag` -> (host:port, repository, tag)."""
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    return host, repository, tag


def digest_of(reference: str, address: str = PUSH_REGISTRY) -> str:
    """Digest (sha256:...) of the pushed image, or an empty text when the registry is down or has no such tag."""
    _, repository, tag = split_reference(reference)
    transport = HttpTransport(address, timeout_s=TIMEOUT_S)
    try:
        answer = transport.call("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE})
    except OSError:
        return ""
    return answer.digest if answer.status == 200 else ""

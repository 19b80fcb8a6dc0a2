"""Asks the lab's registry for the digest of a tag."""

from __future__ import annotations

import http.client
from typing import Final

from trispark.images.oci import MANIFEST_TYPE
from trispark.lab.layout import PUSH_REGISTRY

TIMEOUT_S: Final = 5.0


def split_reference(reference: str) -> tuple[str, str, str]:
    """`host:port/repository:tag` -> (host:port, repository, tag)."""
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    return host, repository, tag


def digest_of(reference: str, address: str = PUSH_REGISTRY) -> str:
    """Digest (sha256:...) of the pushed image, or an empty text when the registry is down or has no such tag.

    http.client and not urllib: a proxy from the environment has no business between this machine and itself.
    """
    _, repository, tag = split_reference(reference)
    host, _, port = address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE})
        answer = connection.getresponse()
        answer.read()
        return answer.getheader("Docker-Content-Digest", "") if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()

"""Members of a multi-platform image, read from its registry by digest; every answer is hashed before it is believed."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.images.package_index import Http, Stream, read_answer
from trispark.images.registry_address import is_local
from trispark_node.image_name import HUB
from trispark_node.plain_json import parse_json
from trispark_node.registry import ACCEPT, HUB_API

LARGEST: Final = 4 * 2**20
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE: Final = re.compile(r'([a-z]+)="([^"]*)"')


@dataclass(frozen=True)
class Member:
    """The manifest of one architecture, and the configuration (image id) that it names."""

    digest: str
    config: str


class RegistryUnreachable(Exception):
    """The registry gives no answer that can be used; the text says why, without its address."""


class ImageMembers:
    """Anonymous reads of a registry. `repository` is a full name with its host; docker.io is where Docker asks it."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def member(self, repository: str, index: str, architecture: str) -> Member | None:
        """Of linux on that architecture; None where the index has none.

        Raises RegistryUnreachable; TS-IMAGES-MANIFEST for an answer whose bytes are not those of the digest.
        """
        listed = self._json(repository, index)
        if "manifests" not in listed:  # the digest is that of a single manifest
            return Member(index, _config(listed))
        try:
            found = [str(each["digest"]) for each in listed["manifests"] if _is_for(each, architecture)]
        except (TypeError, AttributeError, KeyError):
            raise RegistryUnreachable("its answer is no index") from None
        if not found:
            return None
        if _DIGEST.fullmatch(found[0]) is None:
            raise RegistryUnreachable("its index names a member by something else than a digest")
        return Member(found[0], _config(self._json(repository, found[0])))

    def _json(self, repository: str, digest: str) -> dict[str, Any]:
        host, _, name = repository.partition("/")
        if host == HUB:
            host = HUB_API
        scheme = "http" if is_local(host) else "https"
        body = self._get(f"{scheme}://{host}/v2/{name}/manifests/{digest}")
        observed = "sha256:" + hashlib.sha256(body).hexdigest()
        if observed != digest:
            raise TrisparkError(
                "TS-IMAGES-MANIFEST",
                "a registry gives another manifest than the digest names",
                where=repository,
                expected=digest,
                observed=observed,
                remedy="do not use that registry",
            )
        try:
            value = parse_json(body)
        except ValueError:
            raise RegistryUnreachable("its answer is not JSON") from None
        if not isinstance(value, dict):
            raise RegistryUnreachable("its answer is no manifest")
        return value

    def _get(self, url: str) -> bytes:
        accept = {"Accept": ACCEPT}
        try:
            try:
                return _body(self._http.get(url, accept))
            except urllib.error.HTTPError as error:
                if error.code != 401:
                    raise
                token = self._token(error.headers)
                return _body(self._http.get(url, {**accept, "Authorization": f"Bearer {token}"}))
        except urllib.error.HTTPError as error:
            raise RegistryUnreachable(f"status {error.code}") from None
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise RegistryUnreachable(str(reason)) from None

    def _token(self, headers: Message[str, str]) -> str:
        asked = dict(_CHALLENGE.findall(headers.get("WWW-Authenticate", "")))
        query = urllib.parse.urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        answer = parse_json(_body(self._http.get(f"{asked['realm']}?{query}", {})))
        return str(answer.get("token") or answer["access_token"])


def _body(stream: Stream) -> bytes:
    return read_answer(stream, LARGEST)


def _is_for(entry: Mapping[str, Any], architecture: str) -> bool:
    platform = entry.get("platform") or {}
    return platform.get("os") == "linux" and platform.get("architecture") == architecture


def _config(manifest: Mapping[str, Any]) -> str:
    try:
        digest = str(manifest["config"]["digest"])
    except (KeyError, TypeError):
        digest = ""
    if _DIGEST.fullmatch(digest) is None:
        raise RegistryUnreachable("its answer is no manifest")
    return digest

"""Logins to registries, as `docker login` left them; and the tokens that a registry gives for one.

A login is read from the file, sent to the registry or to the place that it names for tokens, over TLS or within this
machine, and appears in no message.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from trispark.errors import TrisparkError
from trispark.images.bounded import read_json
from trispark.images.registry_address import is_local
from trispark_node.plain_json import parse_json
from trispark_node.registry import HUB_API

MOST_BYTES: Final = 2**20
HUB_KEY: Final = "https://index.docker.io/v1/"
"""Under which Docker keeps the login of its own registry."""
_CHALLENGE: Final = re.compile(r'([a-z]+)="([^"]*)"')
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}")

Get = Callable[[str, str, Mapping[str, str]], tuple[int, bytes]]
"""(address, path with its query, headers) -> (status, body) of a GET. Raises OSError."""


@dataclass(frozen=True)
class Login:
    """`basic`: what goes behind `Basic `, not to be shown."""

    basic: str = field(repr=False)


def config_file(environment: Mapping[str, str]) -> Path:
    """Docker's own configuration of this user."""
    folder = environment.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path(environment.get("HOME") or "/") / ".docker") / "config.json"


def login_of(address: str, environment: Mapping[str, str] | None = None) -> Login | None:
    """Of a registry `host[:port]`; None where none is kept. Raises TS-IMAGES-LOGIN: a file that cannot be read, a login
    of a kind that is not supported."""
    path = config_file(os.environ if environment is None else environment)
    try:
        config = read_json(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _error(
            str(path), "Docker's configuration, in JSON", getattr(error, "strerror", None) or str(error)
        ) from None
    keys = (HUB_KEY,) if address == HUB_API else (address, f"https://{address}", f"https://{address}/v2/")
    auths, helpers = _object(config.get("auths")), _object(config.get("credHelpers"))
    entry = next((_object(auths[key]) for key in keys if key in auths), {})
    if entry.get("auth"):
        return Login(_checked(path, address, entry["auth"]))
    if entry.get("identitytoken") or any(key in helpers for key in keys) or config.get("credsStore"):
        raise _error(
            f"{path}, {address}",
            "a login in the file itself (auths, auth)",
            "one that a credential helper keeps, or a token of another kind",
        )
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _checked(path: Path, address: str, auth: Any) -> str:
    try:
        name, colon, _ = base64.b64decode(str(auth), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        name, colon = "", ""
    if not name or not colon:
        raise _error(f"{path}, {address}", "auth: base64 of NAME:PASSWORD", "something else")
    return str(auth)


class Authorization:
    """The header that a registry wants for one repository; it is asked for again when it is not valid any more."""

    def __init__(self, address: str, repository: str, login: Callable[[], Login | None], get: Get) -> None:
        """`login` is asked for when a registry wants one, and no earlier."""
        self._address, self._repository, self._login, self._get = address, repository, login, get
        self._header = ""

    def headers(self) -> dict[str, str]:
        return {"Authorization": self._header} if self._header else {}

    def renew(self, challenge: str) -> bool:
        """After an answer 401 with this `WWW-Authenticate`. False where nothing can be got for it.

        Raises TS-IMAGES-LOGIN, OSError.
        """
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            login = self._login()
            self._header = f"Basic {login.basic}" if login else ""
        elif kind == "bearer":
            self._header = f"Bearer {self._token(dict(_CHALLENGE.findall(challenge)))}"
        else:
            self._header = ""
        return bool(self._header)

    def _token(self, asked: Mapping[str, str]) -> str:
        """By the registry's own way: a GET at the place that it names, with the login where there is one."""
        address, path = self._realm(asked.get("realm", ""))
        query = {"scope": f"repository:{self._repository}:pull,push"}
        if "service" in asked:
            query["service"] = asked["service"]
        login = self._login()
        headers = {"Authorization": f"Basic {login.basic}"} if login else {}
        status, body = self._get(address, f"{path}{'&' if '?' in path else '?'}{urlencode(query)}", headers)
        if status != 200:
            raise _error(
                self._address,
                "a token for pull and push",
                f"status {status} from {address}, {'with' if login else 'without'} a login",
            )
        try:
            answer = parse_json(body)
            token = answer.get("token") or answer["access_token"]
        except (ValueError, KeyError, AttributeError, TypeError):
            token = None
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            raise _error(self._address, "a token", f"an answer of {address} without one")
        return token

    def _realm(self, realm: str) -> tuple[str, str]:
        """(address, path) for tokens: a registry may not have a login sent in the open."""
        try:
            parts = urlsplit(realm)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != ("http" if is_local(parts.netloc) else "https"):
            raise _error(self._address, "a place for tokens with https", json.dumps(realm[:120]))
        return parts.netloc.lower(), (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _error(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-LOGIN",
        "a login to the registry cannot be used",
        where=where,
        expected=expected,
        observed=observed[:200],
        remedy="docker login on this machine, without a credential helper (docs/images.md); then repeat it",
    )

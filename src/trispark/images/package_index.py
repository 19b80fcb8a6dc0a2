"""The package index that pip is configured with: which files it has, and what it says their hashes are.

Its simple API is read, as JSON (PEP 691) or as a page (PEP 503). Where the index lies is asked of pip each time and
appears in no message and no file; a password in its address is sent as pip sends it.
"""

from __future__ import annotations

import ast
import base64
import importlib
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine
from trispark.images.lock_model import MACHINES, WheelInput
from trispark_node.plain_json import parse_json

ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
ANSWER_S: Final = 60.0
PIP_S: Final = 60.0
WHOLE_S: Final = 300.0
"""Of a whole answer that is no wheel."""
PIECE: Final = 2**20
LARGEST_PAGE: Final = 64 * 2**20
_HASH: Final = re.compile(r"sha256=([0-9a-f]{64})")


class Stream(Protocol):
    """An answer: its headers, and its body in pieces."""

    status: int
    headers: Any

    def read(self, amount: int = ..., /) -> bytes: ...

    def close(self) -> None: ...


class Http(Protocol):
    """GET. Raises OSError where nothing answers, urllib.error.HTTPError (an OSError) for a refusal."""

    def get(self, url: str, headers: Mapping[str, str]) -> Stream: ...


class UrllibHttp:
    """Through the proxies of the environment; every wait for the peer is bounded by `timeout_s`."""

    def __init__(self, timeout_s: float = ANSWER_S, certificates: str | None = None) -> None:
        self._timeout_s = timeout_s
        context = ssl.create_default_context(cafile=certificates)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _SameHostLogin())

    def get(self, url: str, headers: Mapping[str, str]) -> Stream:
        """An address comes from the peer at times: of a file of this machine, or of no form, it is an OSError."""
        try:
            if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
                raise ValueError("it is neither http nor https")
            stream: Stream = self._opener.open(
                urllib.request.Request(url, headers=dict(headers)), timeout=self._timeout_s
            )
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection; what is asked of it are its status and headers
            raise
        except ValueError as error:
            raise OSError(f"an address that cannot be used: {error}") from None
        return _InParts(stream)


class _InParts:
    """A stream that gives what has come, so that whoever reads can look at the clock in between: a peer that sends a
    byte now and then never runs into a timeout."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.status: int = stream.status
        self.headers = stream.headers

    def read(self, amount: int = -1, /) -> bytes:
        return bytes(self._stream.read1(amount))

    def close(self) -> None:
        self._stream.close()


def read_answer(stream: Stream, most: int, seconds: float = WHOLE_S) -> bytes:
    """All of it, and its end. Raises OSError: for more than `most` bytes, or when it takes longer than `seconds`."""
    end = time.monotonic() + seconds
    pieces, size = [], 0
    try:
        while piece := stream.read(min(PIECE, most + 1 - size)):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise OSError(f"more than {most} bytes")
            if time.monotonic() >= end:
                raise TimeoutError(f"no whole answer within {seconds:g} s")
    finally:
        stream.close()
    return b"".join(pieces)


class _SameHostLogin(urllib.request.HTTPRedirectHandler):
    """A login is for the host that it was meant for, not for the one that it redirects to."""

    def redirect_request(self, req: urllib.request.Request, *rest: Any) -> urllib.request.Request | None:
        followed = super().redirect_request(req, *rest)
        if followed is not None and followed.host != req.host:
            followed.remove_header("Authorization")
        return followed


@dataclass(frozen=True)
class IndexFile:
    """One file that the index offers. `sha256` is None where it states none; `size` in bytes."""

    name: str
    url: str
    sha256: str | None
    size: int | None
    headers: Mapping[str, str]
    """What a request for it must carry."""


class PackageIndex:
    """Files by project. `address`: of the simple API, with http or https."""

    def __init__(self, address: str, http: Http) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _index_error("its address is not one of http or https", "pip has an index with http or https")
        self.http = http
        self._host = parts.netloc.rpartition("@")[2]
        self._login = _login(parts)
        self._address = urllib.parse.urlunsplit((parts.scheme, self._host, parts.path.rstrip("/"), "", ""))
        self._pages: dict[str, tuple[IndexFile, ...]] = {}

    @classmethod
    def of_pip(cls, machine: Machine | None = None) -> PackageIndex:
        """As pip on this machine is configured."""
        told = _pip_values(machine or LocalMachine())
        certificates = told.get("cert")
        if certificates is not None and not Path(certificates).is_file():
            raise _index_error("pip's file of certificates is not there", "a file of certificates, or none")
        return cls(told.get("index-url") or _pips_own(), UrllibHttp(certificates=certificates))

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """All files of a project. Raises TS-IMAGES-INDEX (it does not answer, or not in a known form)."""
        if project not in self._pages:
            self._pages[project] = self._read(project)
        return self._pages[project]

    def wheel(self, wanted: WheelInput) -> IndexFile | None:
        """The one file of that project, version, architecture and Python; None where there is none.

        Raises TS-IMAGES-INDEX, also for several that fit.
        """
        found = [file for file in self.files(wanted.project) if fits(file.name, wanted)]
        if len(found) > 1:
            names = ", ".join(sorted(file.name for file in found))
            raise _index_error(f"several files fit: {names}", "one wheel of that version and architecture")
        return found[0] if found else None

    def _read(self, project: str) -> tuple[IndexFile, ...]:
        page = f"{self._address}/{project}/"
        login = {} if self._login is None else {"Authorization": self._login}
        try:
            answer = self.http.get(page, {"Accept": ACCEPT, **login})
            kind = str(answer.headers.get("Content-Type", ""))
            body = read_answer(answer, LARGEST_PAGE)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return ()
            raise _index_error(f"status {error.code} for {project}", "an answer") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _index_error(f"{project}: {_reason(error)}", "an answer") from None
        try:
            listed = _of_json(body) if "json" in kind else _of_html(body)
            return tuple(self._file(page, *each) for each in listed)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _index_error(f"{project}: an answer of another form", "the simple API of pip") from None

    def _file(self, page: str, name: str, href: str, sha256: str | None, size: int | None) -> IndexFile:
        url = urllib.parse.urldefrag(urllib.parse.urljoin(page, href)).url
        same = urllib.parse.urlsplit(url).netloc == self._host
        headers = {"Authorization": self._login} if same and self._login is not None else {}
        return IndexFile(name, url, sha256, size, headers)


def fits(file: str, wanted: WheelInput) -> bool:
    """Whether a wheel's name is that of the version, machine and Python that are wanted."""
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or len(parts) not in (5, 6):
        return False
    project, version, pythons, _, platforms = parts[0], parts[1], *parts[-3:]
    if re.sub(r"[-_.]+", "-", project).lower() != wanted.project or version != wanted.version:
        return False
    if wanted.python is not None and wanted.python not in pythons.split("."):
        return False
    if wanted.architecture == "any":
        return platforms == "any"
    machine = MACHINES[wanted.architecture]
    return any(name.endswith(f"_{machine}") and "linux" in name for name in platforms.split("."))


Listed = tuple[str, str, str | None, int | None]


def _of_json(body: bytes) -> list[Listed]:
    files = parse_json(body)["files"]
    return [
        (str(f["filename"]), str(f["url"]), _sha256(f["hashes"].get("sha256")), _size(f.get("size"))) for f in files
    ]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.hrefs.append(href)


def _of_html(body: bytes) -> list[Listed]:
    anchors = _Anchors()
    anchors.feed(body.decode("utf-8"))
    listed: list[Listed] = []
    for href in anchors.hrefs:
        parts = urllib.parse.urlsplit(href)
        name = urllib.parse.unquote(parts.path.rpartition("/")[2])
        found = _HASH.fullmatch(parts.fragment)
        listed.append((name, href, found[1] if found else None, None))
    return listed


def _sha256(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) else None


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _login(parts: urllib.parse.SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _pips_own() -> str:
    """The index that pip asks where nothing is configured, from pip itself: this project names none."""
    return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)


def _pip_values(machine: Machine) -> dict[str, str]:
    """What pip on this machine would take, by option: its environment before `download` before `global`."""
    done = machine.run([sys.executable, "-I", "-m", "pip", "config", "list"], timeout_s=PIP_S)
    found: dict[str, str] = {}
    for section in ("global.", "download.", ":env:."):
        for line in done.stdout.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(section):
                with suppress(ValueError, SyntaxError):
                    found[key.removeprefix(section)] = str(ast.literal_eval(value)).strip()
    return found


def _reason(error: Exception) -> str:
    """Without an address: urllib's own words have the reason alone."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(reason)


def _index_error(observed: str, expected: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-INDEX",
        "the package index gives no answer that can be used",
        where="pip's package index",
        expected=expected,
        observed=observed,
        remedy="check the network and pip's configuration (pip config list), then run the same command again",
    )

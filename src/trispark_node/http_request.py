"""Verb `request`: one plain HTTP call from this node, to the engine API and nowhere else."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.plain_json import parse_json

METHODS = ("GET", "POST")
MAX_BODY_BYTES = 16 * 2**20
MAX_BATCH = 64


@dataclass(frozen=True)
class Response:
    status: int
    content_type: str
    body: bytes


class HttpClient(Protocol):
    def call(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Response:
        """Any status is an answer. Raises OSError (TimeoutError, ConnectionError, ...) when there is none."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead away from the allowed hosts; it is an answer like any other."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


class UrllibClient:
    def __init__(self) -> None:
        # The empty proxy handler keeps proxy variables of the node's environment out.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def call(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                return Response(answer.status, answer.headers.get("Content-Type", ""), answer.read(MAX_BODY_BYTES + 1))
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.headers.get("Content-Type", ""), error.read(MAX_BODY_BYTES + 1))
        except http.client.HTTPException as error:
            raise ConnectionError(f"no HTTP answer: {error!r}") from error


@dataclass(frozen=True)
class HttpRequest:
    url: str
    method: str
    body: bytes | None
    timeout_s: float

    @classmethod
    def parse(cls, fields: Fields) -> HttpRequest:
        url = fields.text("url")
        method = fields.text("method", "GET")
        raw = fields.anything("body")
        timeout_s = fields.seconds("timeout_s", 10, high=3600)
        if method not in METHODS:
            raise request_error(
                "method is not allowed", where="request.method", expected=" or ".join(METHODS), observed=method
            )
        _check_address(url)
        if raw is None:
            body = None
        else:
            body = (raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)).encode("utf-8")
        return cls(url, method, body, timeout_s)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError as error:
        raise request_error(
            "url has the wrong form", where="request.url", expected="a URL", observed=str(error)
        ) from None
    if parts.scheme != "http" or parts.username is not None or not host:
        raise request_error(
            "url has the wrong form", where="request.url", expected="http://host:port/path without a user", observed=url
        )
    if not _is_loopback(host):
        raise AgentError(
            "TS-AGENT-HOST-REFUSED",
            "the agent calls only the engine of its own node",
            where=url,
            expected="a loopback address",
            observed=host,
            remedy="ask the agent of the node that is meant",
        )


@dataclass(frozen=True)
class BatchRequest:
    requests: tuple[HttpRequest, ...]

    @classmethod
    def parse(cls, fields: Fields) -> BatchRequest:
        inners = fields.inners("requests")
        if not 1 <= len(inners) <= MAX_BATCH:
            raise request_error(
                "requests has the wrong length",
                where="request.requests",
                expected=f"1 to {MAX_BATCH} requests",
                observed=str(len(inners)),
            )
        parsed = tuple(HttpRequest.parse(inner) for inner in inners)
        for inner in inners:
            inner.done()
        return cls(parsed)


def perform_batch(client: HttpClient, batch: BatchRequest) -> dict[str, Any]:
    """{"answers": [...]}: all requests at once, answers in their order; one without an answer is {"error": text}."""

    def one(request: HttpRequest) -> dict[str, Any]:
        try:
            return perform(client, request)
        except AgentError as error:
            return {"error": str(error)}

    with ThreadPoolExecutor(len(batch.requests)) as pool:
        return {"answers": list(pool.map(one, batch.requests))}


def perform(client: HttpClient, request: HttpRequest) -> dict[str, Any]:
    """{"status", "body"}: the body as JSON when the answer says it is JSON, else as text."""
    try:
        response = client.call(request.method, request.url, request.body, request.timeout_s)
    except OSError as error:
        raise AgentError(
            "TS-AGENT-HTTP",
            "the address gives no answer",
            where=f"{request.method} {request.url}",
            expected=f"an HTTP answer within {request.timeout_s:g} s",
            observed=str(getattr(error, "reason", None) or error) or type(error).__name__,
            remedy="see whether the engine runs (trispark-node status)",
        ) from error
    if len(response.body) > MAX_BODY_BYTES:
        raise AgentError(
            "TS-AGENT-HTTP",
            "the answer is too long",
            where=request.url,
            expected=f"at most {MAX_BODY_BYTES} bytes",
            observed="more",
            remedy="ask for less",
        )
    text = response.body.decode("utf-8", "replace")
    if response.content_type.split(";")[0].strip() == "application/json":
        try:
            return {"status": response.status, "body": parse_json(text, any_text=True)}
        except ValueError:
            pass
    return {"status": response.status, "body": text}

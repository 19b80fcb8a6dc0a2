"""Verb `request` against a real server on a port of the kernel's choice."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trispark_node.http_request import UrllibClient


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(b"")

    def do_POST(self):
        self.reply(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, body):
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "http://192.0.2.1/")
            self.end_headers()
            return
        self.send_response(503 if self.path == "/busy" else 200)
        self.send_header("Content-Type", "text/plain" if self.path == "/text" else "application/json; charset=utf-8")
        self.end_headers()
        self.wfile.write(
            b"plain" if self.path == "/text" else json.dumps({"path": self.path, "got": body.decode()}).encode()
        )

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def real(bench):
    object.__setattr__(bench.node, "http", UrllibClient())
    return bench


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/models", {}, {"status": 200, "body": {"path": "/v1/models", "got": ""}}),
        ("/busy", {}, {"status": 503, "body": {"path": "/busy", "got": ""}}),
        ("/x", {"method": "POST", "body": {"ü": 1}}, {"status": 200, "body": {"path": "/x", "got": '{"ü": 1}'}}),
        ("/x", {"method": "POST", "body": "raw"}, {"status": 200, "body": {"path": "/x", "got": "raw"}}),
        ("/text", {}, {"status": 200, "body": "plain"}),
        ("/redirect", {}, {"status": 302, "body": ""}),
    ],
)
def test_request(real, url, monkeypatch, path, fields, expected):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    assert real.ask("request", url=url + path, timeout_s=5, **fields) == {"ok": True, **expected}


@pytest.mark.parametrize(
    ("url", "error_id"),
    [
        ("http://192.0.2.1:8888/", "TS-AGENT-HOST-REFUSED"),
        ("http://127.0.0.1.example.org/", "TS-AGENT-HOST-REFUSED"),
        ("http://10.77.0.11@192.0.2.1/", "TS-AGENT-REQUEST"),
        ("https://127.0.0.1/", "TS-AGENT-REQUEST"),
        ("file:///etc/passwd", "TS-AGENT-REQUEST"),
        ("http://127.0.0.1:x/", "TS-AGENT-REQUEST"),
        ("http://127.0.0.1:1/", "TS-AGENT-HTTP"),
        ("http://10.77.0.11:1/", "TS-AGENT-HOST-REFUSED"),
    ],
)
def test_refusals(bench, url, error_id):
    assert bench.refused("request", url=url)["id"] == error_id


def test_method(bench):
    assert bench.refused("request", url="http://127.0.0.1/", method="DELETE")["id"] == "TS-AGENT-REQUEST"


def test_a_batch_is_sent_at_once_and_answered_in_order(real, url, monkeypatch):
    """All of them are under way before one is answered: each waits for the others on the server."""
    together = threading.Barrier(3, timeout=5)
    answer = Handler.reply

    def wait_for_the_others(self, body):
        together.wait()
        answer(self, body)

    monkeypatch.setattr(Handler, "reply", wait_for_the_others)
    requests = [{"url": f"{url}/{n}", "method": "POST", "body": str(n), "timeout_s": 5} for n in range(3)]
    answers = real.ask("request-batch", requests=requests)["answers"]
    assert [one["body"]["got"] for one in answers] == ["0", "1", "2"]


def test_one_of_a_batch_without_an_answer_does_not_hide_the_others(real, url):
    requests = [{"url": f"{url}/x"}, {"url": "http://127.0.0.1:1/"}, {"url": f"{url}/busy"}]
    answers = real.ask("request-batch", requests=requests)["answers"]
    assert [one.get("status") for one in answers] == [200, None, 503]
    assert answers[1]["error"].startswith("TS-AGENT-HTTP: ")


@pytest.mark.parametrize(
    ("requests", "error_id"),
    [
        ([], "TS-AGENT-REQUEST"),
        ([{"url": "http://127.0.0.1:1/"}] * 65, "TS-AGENT-REQUEST"),
        ([{"url": "http://127.0.0.1:1/", "surprise": 1}], "TS-AGENT-REQUEST"),
        ([{"url": "http://127.0.0.1:1/"}, {"url": "http://192.0.2.1/"}], "TS-AGENT-HOST-REFUSED"),
    ],
)
def test_a_batch_of_a_wrong_form_is_refused_before_anything_is_sent(bench, requests, error_id):
    assert bench.refused("request-batch", requests=requests)["id"] == error_id
    assert bench.http.calls == []

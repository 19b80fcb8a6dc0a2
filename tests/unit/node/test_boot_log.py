"""Kept logs: for nobody but root on the node, handed out redacted, and judged whole although cut."""

from __future__ import annotations

import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_node.docker_client import Executed
from trispark_node.log_patterns import PatternCount
from trispark_node.redaction import TextRedactor

SECRET = "sekret-key"
LOG = (
    b"server_args={api_key='sekret-key'}\n" + b"".join(b"step %d\n" % i for i in range(1000)) + b"ERROR sekret-key\nbye"
)


@pytest.fixture
def running(bench, active):
    bench.ask("start", boot_id="b1", epoch=5)
    container_id = next(iter(bench.docker.containers))
    bench.docker.logs[container_id] = LOG
    return container_id


@pytest.fixture
def kept(bench, running):
    bench.ask("stop", deadline_s=1)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("verb", ["stop", "save-log"])
def test_kept_logs_are_roots_alone(bench, running, verb):
    """Whatever the umask, and also where directories were made by something else."""
    directory = bench.node.layout.boots / "b1"
    directory.mkdir(parents=True)
    for path in (directory, directory.parent):
        path.chmod(0o755)
    before = os.umask(0)
    try:
        bench.ask(verb)
    finally:
        os.umask(before)
    assert {path.name: mode(path) for path in directory.iterdir()} == {"engine.log": 0o600, "redact.json": 0o600}
    assert (mode(directory), mode(directory.parent)) == (0o700, 0o700)
    assert bench.node.layout.boot_log("b1").read_bytes() == LOG


def test_a_kept_log_is_redacted_as_the_running_ones_was(bench, kept):
    answer = bench.ask("boot-log", boot_id="b1")
    assert answer["log"] == LOG.decode().replace(SECRET, "<redacted>")
    assert (answer["boot_id"], answer["bytes"], answer["log_bytes_left_out"]) == ("b1", len(LOG), 0)
    assert SECRET not in json.dumps(answer)
    assert "log_patterns" not in answer


def test_the_redaction_is_the_boots_own(bench, kept):
    """The image and the generation that it was started from may be gone."""
    bench.docker.images.clear()
    for path in bench.node.layout.generations.glob("*/spec.json"):
        path.unlink()
    assert SECRET not in json.dumps(bench.ask("boot-log", boot_id="b1"))


@pytest.mark.parametrize("damage", ["lost", "no JSON", "no list", "a number in it"])
def test_a_log_whose_secrets_are_not_known_is_not_handed_out(bench, kept, damage):
    path = bench.node.layout.boot_redaction("b1")
    assert SECRET in path.read_text()
    path.unlink()
    texts = {"no JSON": "{", "no list": '{"secrets": "sekret-key"}', "a number in it": '{"secrets": [1, "sekret-key"]}'}
    if damage in texts:
        path.write_text(texts[damage])
    error = bench.refused("boot-log", boot_id="b1")
    assert error["id"] == "TS-AGENT-LOG-REDACT"
    assert SECRET not in json.dumps(error)


def test_a_boot_without_a_log_is_named_with_those_that_have_one(bench, kept):
    error = bench.refused("boot-log", boot_id="b2")
    assert (error["id"], error["observed"]) == ("TS-AGENT-LOG-MISSING", "logs kept: b1")


@pytest.mark.parametrize("verb", ["observe", "boot-log"])
def test_patterns_are_counted_over_the_whole_log(bench, running, verb):
    bench.docker.executed = {
        "find": Executed(0, "", ""),
        "python3": Executed(0, "{}", ""),
        "engine-version": Executed(0, "0.1.0\n", ""),
    }
    request = {}
    if verb == "boot-log":
        bench.ask("save-log")
        request = {"boot_id": "b1"}
    patterns = {
        r"^step \d+$": 1000,
        "step 500$": 1,
        "ERROR": 1,
        "never": 0,
        "^bye$": 1,
        "server_args": 1,
        SECRET: 0,
        "<redacted>": 2,
        "": 1003,
        r"step 1\s+step 2": 0,
    }
    answer = bench.ask(verb, **request, log_bytes=200, patterns=list(patterns))
    assert answer["log_bytes_left_out"] > 5000
    assert "step 500\n" not in answer["log"]
    assert answer["log_patterns"] == patterns
    whole = bench.ask(verb, **request, patterns=list(patterns))
    assert (whole["log_bytes_left_out"], whole["log_patterns"]) == (0, patterns)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["ok", "("], "patterns[1]"),
        (["(?P<a>x)(?P<a>y)"], "patterns[0]"),
        (["a" * 301], "patterns[0]"),
        (["a"] * 65, "patterns"),
        ([1], "patterns"),
        ("a", "patterns"),
    ],
)
@pytest.mark.parametrize("verb", ["observe", "boot-log"])
def test_patterns_that_are_none_are_refused(bench, kept, verb, patterns, words):
    request = {"boot_id": "b1"} if verb == "boot-log" else {}
    error = bench.refused(verb, patterns=patterns, **request)
    assert (error["id"], words in error["where"]) == ("TS-AGENT-REQUEST", True)


def test_as_many_and_as_long_patterns_as_allowed(bench, kept):
    patterns = [f"{number:03d}" + "a" * 297 for number in range(64)]
    assert bench.ask("boot-log", boot_id="b1", patterns=patterns)["log_patterns"] == dict.fromkeys(patterns, 0)


@given(data=st.binary(max_size=60) | st.text("ab\n\r", max_size=60).map(str.encode), piece=st.integers(1, 9))
def test_counts_do_not_depend_on_the_pieces(data, piece):
    count = PatternCount(["", "a", "a$", "ab"], TextRedactor([]))
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
    assert list(count.passing(pieces)) == pieces
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    if not data or data.endswith(b"\n"):
        lines.pop()
    assert count.counts() == {
        "": len(lines),
        "a": sum(b"a" in line for line in lines),
        "a$": sum(line.endswith(b"a") for line in lines),
        "ab": sum(b"ab" in line for line in lines),
    }

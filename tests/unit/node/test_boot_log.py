"""Kept logs: for nobody but root on the node, handed out redacted, and judged whole although cut."""

from __future__ import annotations

import json
import os
import re
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_node.docker_client import Executed
from trispark_node.log_patterns import MAX_PATTERN_CHARACTERS, MAX_PATTERNS, matching_lines
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
@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["step 500$"], ["step 500"]),
        (["^bye$", "ERROR", r"step 99\d"], [*(f"step {n}" for n in range(990, 1000)), "ERROR <redacted>", "bye"]),
        (["never"], []),
        ([SECRET], []),  # a pattern does not find out what the answer hides
        (["<redacted>"], ["server_args={api_key='<redacted>'}", "ERROR <redacted>"]),
        ([r"step 1\s+step 2"], []),
    ],
)
def test_lines_are_looked_for_in_the_whole_log(bench, running, verb, patterns, found):
    """Within a limit that is far below the size of the log."""
    bench.docker.executed = {
        "python3": Executed(0, "{}", ""),
        "engine-version": Executed(0, "0.1.0\n", ""),
    }
    request = {}
    if verb == "boot-log":
        bench.ask("save-log")
        request = {"boot_id": "b1"}
    else:
        bench.container_root(next(iter(bench.docker.containers)))
    answer = bench.ask(verb, **request, log_bytes=400, patterns=patterns)
    assert (answer["log"].splitlines(), answer["log_bytes_left_out"], answer["log_size"]) == (found, 0, len(LOG))


def test_lines_that_do_not_fit_are_said_to_be_left_out(bench, kept):
    answer = bench.ask("boot-log", boot_id="b1", log_bytes=200, patterns=["^step"])
    assert answer["log_bytes_left_out"] > 5000
    assert "step 500\n" not in answer["log"]


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["ok", "("], "patterns[1]"),
        (["(?P<a>x)(?P<a>y)"], "patterns[0]"),
        (["a" * (MAX_PATTERN_CHARACTERS + 1)], "patterns[0]"),
        (["a"] * (MAX_PATTERNS + 1), "patterns"),
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
    patterns = [f"{number:03d}" + "a" * (MAX_PATTERN_CHARACTERS - 3) for number in range(MAX_PATTERNS)]
    assert bench.ask("boot-log", boot_id="b1", patterns=patterns)["log"] == ""


@given(data=st.binary(max_size=60) | st.text("ab\n\r", max_size=60).map(str.encode), piece=st.integers(1, 9))
@pytest.mark.parametrize("pattern", ["", "a", "a$", "ab"])
def test_lines_do_not_depend_on_the_pieces(pattern, data, piece):
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
    wanted = {
        "": lambda line: True,
        "a": lambda line: b"a" in line,
        "a$": lambda line: line.endswith(b"a"),
        "ab": lambda line: b"ab" in line,
    }[pattern]
    lines = [line for line in re.split(rb"(?<=\n)", data) if line and wanted(line.rstrip(b"\r\n"))]
    assert list(matching_lines(pieces, [pattern], TextRedactor([]))) == lines

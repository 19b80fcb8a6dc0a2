"""The program that executes a model's code: limits, what it says, and that it executes nothing beside a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.quality import sandbox_program
from trispark.quality.sandbox import executed, sandbox_request

IMAGE = "registry:5000/bench@sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("code", "checks", "wrong"),
    [
        ("def f(n):\n    return 2 * n", ["f(2) == 4", "f(0) == 0"], []),
        ("def f(n):\n    return 2 * n", ["f(2) == 5"], ["f(2) == 5 is not true"]),
        ("def f(n):\n    return 2 * n", ["f(2)"], ["f(2) is not true"]),
        ("def f(n", ["True"], ["the code ends with SyntaxError"]),
        ("x = 1", ["f(2) == 4"], ["f(2) == 4 ends with NameError"]),
        ("raise SystemExit", ["True"], ["the code ends with SystemExit"]),
        ("import os\nos._exit(0)", ["True"], ["ended with 0 before its checks"]),
        ("print('[]')", ["False"], ["False is not true"]),
        (
            "import os\nos.write(os.memfd_create('x'), b'x')",
            ["True"],
            ["the code ends with OSError"],
        ),
        ("x = bytearray(2**30)", ["True"], ["the code ends with MemoryError"]),
        ("while True:\n    pass", ["True"], None),
    ],
    ids=["right", "wrong", "not-true", "syntax", "name", "exits", "ends", "prints", "writes", "memory", "never-ends"],
)
def test_a_piece_of_our_own_code(code: str, checks: list[str], wrong: list[str] | None) -> None:
    found = sandbox_program.run_piece({"id": "x", "code": code, "checks": checks}, 1.0)
    assert found if wrong is None else found == wrong


def test_nothing_is_executed_beside_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "input.json", tmp_path / "output.json"
    source.write_text(json.dumps({"pieces": [{"id": "a", "code": "", "checks": []}], "seconds": 1}))
    ran: list[Any] = []
    monkeypatch.setattr(sandbox_program, "run_piece", lambda piece, seconds: ran.append(piece) or [])
    for seen, code, refused in ((["eth0"], 3, "a network can be seen: eth0"), ([], 0, None)):
        monkeypatch.setattr(sandbox_program, "networks", lambda seen=seen: seen)
        assert sandbox_program.main(str(source), str(target)) == code
        assert json.loads(target.read_text())["refused"] == refused
        assert len(ran) == (0 if seen else 1)


def test_networks(tmp_path: Path) -> None:
    for name in ("lo", "eth1", "eth0"):
        (tmp_path / name).mkdir()
    assert sandbox_program.networks(str(tmp_path)) == ["eth0", "eth1"]
    assert sandbox_program.networks(str(tmp_path / "absent")) != [], "what cannot be read is no isolation"


def test_the_text_is_a_program_by_itself(tmp_path: Path) -> None:
    request = sandbox_request(IMAGE, [])
    assert (request["isolated"], request["image"]) == (True, IMAGE)
    source, target = tmp_path / "input.json", tmp_path / "output.json"
    source.write_text(json.dumps(request["input"]))
    words = [sys.executable, *request["command"][1:4], str(source), str(target)]
    ended = subprocess.run(words, check=False, timeout=60)
    answer = json.loads(target.read_text())
    assert (ended.returncode, answer["refused"] is None) in ((0, True), (3, False))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"exit_code": 3, "output": {"refused": "a network can be seen: eth0", "results": {}}}, "eth0"),
        ({"exit_code": 137, "output": None}, "exit 137"),
        ({"exit_code": 0, "output": []}, "exit 0"),
    ],
)
def test_a_sandbox_that_did_not_run_is_an_error(answer: dict[str, Any], shown: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        executed(answer)
    assert caught.value.id == "TS-QUALITY-SANDBOX"
    assert shown in caught.value.observed


def test_what_ran_is_given_by_task() -> None:
    assert executed({"exit_code": 0, "output": {"refused": None, "results": {"a": [], "b": ["x"]}}}) == {
        "a": (),
        "b": ("x",),
    }
    assert executed(None) == executed({}) == {}

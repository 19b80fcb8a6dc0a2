"""The program that executes a model's code: limits, what it says, and that it executes nothing beside a network."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.quality import sandbox_program
from trispark.quality.sandbox import child_program, executed, sandbox_request
from trispark.quality.sandbox_child import filter_of
from trispark.quality.sandbox_program import Unconfined, parsed, run_piece

IMAGE = "registry:5000/bench@sha256:" + "a" * 64


PROGRAM = child_program()
EVERYWHERE = """
import os
def everywhere(data):
    for fd in range(3, 16):
        try: os.write(fd, data)
        except OSError: pass
"""
ANY_EQUAL = "class A:\n    __eq__ = lambda a, b: True\n"
DOUBLE = "def f(n):\n    return 2 * n\n"
WRONG = "def f(n):\n    return 3 * n\n"


def run(code: str, checks: list[str], seconds: float = 5.0) -> list[str]:
    return run_piece({"id": "x", "code": code, "checks": checks}, seconds, PROGRAM)


@pytest.mark.parametrize(
    ("code", "checks", "wrong"),
    [
        (DOUBLE, ["f(2) == 4", "f(0) == 0", "not f(0)"], []),
        (DOUBLE, ["f(2) == 5"], ["f(2) == 5 is not true"]),
        (DOUBLE, ["f(2)"], ["f(2) is not true"]),
        ("def f(n", ["f(2)"], ["the code ends with SyntaxError"]),
        ("x = 1", ["f(2) == 4"], ["f(2) ends with NameError"]),
        ("import re, math, collections, json, random, threading\n" + DOUBLE, ["f(2) == 4"], []),
        ("def f(n):\n    return (n, {n: [None, 1.5]}, 'ä\\n')", ["f(2) == (2, {2: [None, 1.5]}, 'ä\\n')"], []),
        ("def f(n):\n    return object()", ["f(2) == 4"], ["f(2) gives no plain value"]),
        (ANY_EQUAL + "def f(n):\n    return A()", ["f(2) == 4"], ["f(2) gives no plain value"]),
        ("import sys\nprint('x', file=sys.stderr)\nprint('[]')\n" + DOUBLE, ["f(2) == 4"], []),
    ],
    ids=["right", "wrong", "not-true", "syntax", "name", "imports", "values", "object", "equal-to-all", "prints"],
)  # fmt: skip
def test_a_piece_of_our_own_code(code: str, checks: list[str], wrong: list[str]) -> None:
    assert run(code, checks) == wrong


EXITS = {
    "system-exit": ("raise SystemExit(0)", "the code ends with SystemExit"),
    "forged-print": ("print('[]'); import os; os._exit(0)", "ended with 0 before its checks"),
    "exit-in-the-call": ("import os\ndef f(n):\n    os._exit(0)", "ended with 0 before its checks"),
    "sys-exit-in-the-call": ("import sys\ndef f(n):\n    sys.exit(0)", "f(2) ends with SystemExit"),
    "exit-status": ("import atexit, os\natexit.register(os._exit, 7)\n" + DOUBLE, "ended with 7 after its checks"),
    "recursion": ("def f(n):\n    return f(n)", "f(2) ends with RecursionError"),
    "deep-value": (
        "def f(n):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "f(2) ends with RecursionError",
    ),
    "deep-text": (
        "class A:\n    __repr__ = lambda a: '[' * 9000 + ']' * 9000\ndef f(n):\n    return A()",
        "f(2) gives no plain value",
    ),
    "memory": ("x = bytearray(2**30)", "the code ends with MemoryError"),
    "huge": ("def f(n):\n    return 'x' * 10**6", "more than 65536 bytes of results"),
    "huge-in-many": (
        f"{EVERYWHERE}def f(n):\n    while True: everywhere(b'x' * 4096)",
        "more than 65536 bytes of results",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXITS)
def test_an_exit_or_a_result_that_is_none_is_no_pass(name: str) -> None:
    code, wrong = EXITS[name]
    assert run(code, ["f(2) == 4"]) == [wrong]


def test_a_stack_that_bursts_is_no_pass() -> None:
    code = "import ctypes\ndef f(n):\n    ctypes.string_at(0)"
    assert run(code, ["f(2) == 4"]) == ["ended with -11 before its checks"]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True: print('x' * 4096)",
        "import sys\nwhile True: print('x' * 4096, file=sys.stderr)",
        "import os\nwhile True: os.write(1, b'x' * 4096); os.write(2, b'x' * 4096)",
        "import select\nselect.select([], [], [])",
    ],
    ids=["spins", "print", "stderr", "write", "waits"],
)
def test_what_never_ends_is_ended_and_kept_nowhere(code: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for defined in (code, "def f(n):\n    " + code.replace("\n", "\n    ")):
        (wrong,) = run(defined, ["f(2) == 4"], 0.5)
        assert wrong in ("no end within 1 s", "ended with -9 before its checks")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024, "KiB of this process"


FORGED = {
    # Answers before they are asked for, on every descriptor that can be found.
    "early": f"{EVERYWHERE}everywhere(b'defined\\nx value 4\\n')",
    "early-and-gone": f"{EVERYWHERE}everywhere(b'defined\\nx value 4\\n')\nos._exit(0)",
    "in-the-call": f"{EVERYWHERE}def f(n):\n    everywhere(b'x value 4\\n')",
    "late": f"{EVERYWHERE}{DOUBLE}import atexit\natexit.register(everywhere, b'x value 4\\n')",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_answer_is_one_that_was_not_asked_for(name: str) -> None:
    assert run(FORGED[name], ["f(2) == 4"]) == ["an answer that was not asked for"]


@pytest.mark.parametrize(
    "patch",
    [
        "import builtins as b\nb.repr = lambda x: '4'\nb.eval = lambda *a: 4\nb.print = b.compile = None",
        "import json\njson.dumps = json.loads = lambda *a, **k: {'token': '', 'call': '4'}",
        "import os\nos.write = lambda fd, data: len(data)\nos.read = lambda fd, n: b''",
        "import builtins\nbuiltins.BaseException = builtins.type = builtins.__import__ = None",
        "import sys\nsys.modules['__main__'].__dict__.clear()",
        "import sys\nsys.modules.clear()",
    ],
    ids=["builtins", "json", "os", "exceptions", "main", "modules"],
)  # fmt: skip
def test_a_replaced_function_makes_nothing_right(patch: str) -> None:
    assert run(f"{WRONG}\n{patch}", ["f(2) == 4"]) != []


def test_the_process_of_the_code_knows_no_expected_value(tmp_path: Path) -> None:
    """All that the process can see of its checks before a call: its frames, its arguments, its questions so far."""
    code = (
        "import gc, sys\nframe = sys._getframe()\nseen = [sys.orig_argv]\nwhile frame:\n"
        "    seen.append({k: v for k, v in frame.f_locals.items() if k != 'seen'})\n    frame = frame.f_back\n"
        "text = repr(seen)\ndef f(n):\n    return 'cafe' + 'd00d' in text or '90' + '210' in text\n"
    )
    assert run(code, ["f(90210) == False", 'f("x") == "cafed00d"']) == ['f("x") == "cafed00d" is not true']


DENIED = {
    "fork": "os.fork()",
    "thread": "__import__('threading').Thread(target=print).start()",
    "program": "os.execv('/bin/true', ['true'])",
    "spawn": "__import__('subprocess').Popen(['/bin/true'])",
    "grandchild": "__import__('subprocess').Popen(['/bin/sleep', '600'], start_new_session=True)",
    "kill": "os.kill(os.getppid(), 0)",
    "limit": "__import__('resource').prlimit(os.getppid(), 7, (3, 3))",
    "socket": "__import__('socket').socket()",
    "connect": "__import__('socket').create_connection(('127.0.0.1', 9))",
    "pair": "__import__('socket').socketpair()",
    "new-file": "open(PLACE + '/new', 'w')",
    "truncate": "os.truncate(PLACE + '/kept', 0)",
    "open-truncate": "os.open(PLACE + '/kept', os.O_RDONLY | os.O_TRUNC)",
    "append": "open(PLACE + '/kept', 'a')",
    "remove": "os.unlink(PLACE + '/kept')",
    "rename": "os.rename(PLACE + '/kept', PLACE + '/other')",
    "directory": "os.mkdir(PLACE + '/new')",
    "link": "os.symlink('/etc/passwd', PLACE + '/new')",
    "mode": "os.chmod(PLACE + '/kept', 0o777)",
    "memory-file": "os.memfd_create('x')",
    "no-file": "os.open(PLACE, os.O_TMPFILE | os.O_RDWR)",
}


@pytest.mark.parametrize("name", DENIED)
def test_what_is_denied(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "kept").chmod(0o600)
    code = f"""
import os
PLACE = {str(tmp_path)!r}
def f(n):
    try:
        {DENIED[name]}
    except (PermissionError, RuntimeError) as error:
        return type(error).__name__ if isinstance(error, OSError) else str(error)
"""
    wanted = "can't start new thread" if name == "thread" else "PermissionError"
    assert run(code, [f"f(1) == {wanted!r}"]) == []
    assert [(each.name, each.read_text(), each.stat().st_mode & 0o777) for each in tmp_path.iterdir()] == [
        ("kept", "kept", 0o600)
    ]


@pytest.mark.parametrize(
    "check", ["True", "f(2) == g(2)", "f(2) < 3", "f(x) == 1", "a.f(1)", "f(", "f(1) == 1 == 1", "f(n=1)"]
)
def test_a_check_of_another_form_is_refused(check: str) -> None:
    with pytest.raises(ValueError, match="is not CALL == LITERAL"):
        parsed(check)


def test_a_process_that_cannot_be_confined_executes_nothing(tmp_path: Path) -> None:
    program = PROGRAM.replace("confine()\n    say", "raise OSError\n    say")
    assert program != PROGRAM
    with pytest.raises(Unconfined, match="no filter of system calls, exit 1"):
        run_piece({"id": "x", "code": DOUBLE, "checks": ["f(2) == 4"]}, 5.0, program)


@pytest.mark.parametrize(
    ("place", "instead", "why"),
    [
        ("confine()\n    say", "__import__('signal').pause()\n    say", "did not start: no end within 1 s"),
        ('say("filtered")', 'say("filtered"); __import__("signal").pause()', "did not start: no end within 1 s"),
        ('say("filtered")', 'say("filtered"); os._exit(7)', "did not get the code, exit 7"),
    ],
    ids=["start", "hand-over", "gone"],
)
def test_a_process_that_does_not_start_is_no_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, place: str, instead: str, why: str
) -> None:
    monkeypatch.setattr(sandbox_program, "START_SECONDS", 1.0)
    program = PROGRAM.replace(place, instead)
    assert program != PROGRAM
    for code in (DOUBLE, DOUBLE + "#" * 2**18):  # more than a pipe holds
        with pytest.raises(Unconfined, match=why):
            run_piece({"id": "x", "code": code, "checks": ["f(2) == 4"]}, 0.1, program)


def test_the_time_of_the_code_begins_when_its_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    plain = sandbox_program.Piece.answer

    def answer(piece: sandbox_program.Piece) -> str | None:
        said = plain(piece)
        now[0] += {"filtered": 100.0, "defined": 15.0}.get(said or "", 0.0)
        return said

    monkeypatch.setattr(sandbox_program, "START_SECONDS", 110.0)
    monkeypatch.setattr(sandbox_program, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sandbox_program.Piece, "answer", answer)
    assert run(DOUBLE, ["f(2) == 4"], seconds=20.0) == []
    assert run(WRONG, ["f(2) == 4"], seconds=20.0) == ["f(2) == 4 is not true"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_whole_steps_that_end_with_an_answer(machine: str) -> None:
    steps = list(struct.iter_unpack("HBBI", filter_of(machine)))
    assert len(steps) < 4096
    assert steps[-1] == (0x06, 0, 0, 0x7FFF0000)
    assert all(place + 1 + max(yes, no) < len(steps) for place, (code, yes, no, _) in enumerate(steps) if code & 7 == 5)
    with pytest.raises(KeyError):
        filter_of("riscv64")


def test_nothing_is_executed_beside_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "input.json", tmp_path / "output.json"
    source.write_text(json.dumps({"pieces": [{"id": "a", "code": "", "checks": []}], "seconds": 1, "program": ""}))
    ran: list[Any] = []
    monkeypatch.setattr(sandbox_program, "run_piece", lambda piece, seconds, program: ran.append(piece) or [])
    monkeypatch.setattr(sandbox_program, "hide", lambda: None)
    for seen, code, refused in ((["eth0"], 3, "a network can be seen: eth0"), ([], 0, None)):
        assert source.exists()
        monkeypatch.setattr(sandbox_program, "networks", lambda seen=seen: seen)
        assert sandbox_program.main(str(source), str(target)) == code
        assert json.loads(target.read_text())["refused"] == refused
        assert len(ran) == (0 if seen else 1)
    assert not source.exists(), "what the code should give lies nowhere"


@pytest.mark.parametrize("error", [Unconfined("no filter"), OSError("no process"), ValueError("no check")])
def test_what_could_not_be_confined_or_asked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    source, target = tmp_path / "input.json", tmp_path / "output.json"
    source.write_text(json.dumps({"pieces": [{"id": "a", "code": "", "checks": []}], "seconds": 1, "program": ""}))

    def refuse(*_: Any) -> list[str]:
        raise error

    for name, value in (("networks", list), ("hide", lambda: None), ("run_piece", refuse)):
        monkeypatch.setattr(sandbox_program, name, value)
    assert sandbox_program.main(str(source), str(target)) == 3
    assert json.loads(target.read_text()) == {"refused": str(error), "results": {}}


def test_the_memory_of_the_judge_is_hidden() -> None:
    text = "from trispark.quality import sandbox_program\nsandbox_program.hide()"
    shown = subprocess.run(
        [sys.executable, "-c", f"{text}\nimport ctypes\nprint(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert shown.stdout == "0\n", "not dumpable: no other process may attach or read"


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
        ({"exit_code": 0, "output": {}}, "an output without results"),
        ({"exit_code": 0, "output": {"refused": None, "results": []}}, "an output without results"),
        ({"exit_code": 0, "output": {"refused": None, "results": {"a": "no list"}}}, "an output without results"),
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

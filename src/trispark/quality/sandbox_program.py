"""Runs inside the sandbox's container: has code of a model executed, each piece in a process of its own with limits,
asks it calls, and judges what they give. It executes nothing where a network can be seen.

Standard library alone; the controller sends this file's text as the container's command.

    python3 -I -c TEXT /work/input.json /work/output.json
    input   {"program": text of sandbox_child.py, "seconds": of each piece,
             "pieces": [{"id", "code", "checks": [expression]}]}
    output  {"refused": why, or null, "results": {id: [what is wrong]}}

A check is `CALL == LITERAL`, `CALL` or `not CALL`. The process that has the code learns the call alone, after the code
is there; what it should give stays here.
"""

import ast
import contextlib
import ctypes
import json
import os
import pathlib
import resource
import secrets
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

MEMORY_BYTES = 256 * 2**20
RESULT_BYTES = 64 * 2**10
"""Most that one piece may answer, all calls together."""
START_SECONDS = 10.0
"""For the start of a piece's process, until it has the code. That is the sandbox's time, not the code's."""


class Wrong(Exception):
    """The piece has failed; its text says why."""


class Unconfined(Exception):
    """The process that should have executed the code could not be confined or did not get it: nothing was executed."""


def parsed(check: str) -> tuple[str, str, Any]:
    """(call, kind, value): kind is `equals`, `true` or `false`. Raises ValueError for a check of another form."""
    try:
        body = ast.parse(check, mode="eval").body
        kind, value = "true", None
        if isinstance(body, ast.Compare) and len(body.ops) == 1 and isinstance(body.ops[0], ast.Eq):
            kind, value, body = "equals", ast.literal_eval(body.comparators[0]), body.left
        elif isinstance(body, ast.UnaryOp) and isinstance(body.op, ast.Not):
            kind, body = "false", body.operand
        if not (isinstance(body, ast.Call) and isinstance(body.func, ast.Name)) or body.keywords:
            raise ValueError("no call of a function")
        for each in body.args:
            ast.literal_eval(each)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{check!r} is not CALL == LITERAL, CALL or not CALL: {error}") from None
    return ast.unparse(body), kind, value


def networks(directory: str = "/sys/class/net") -> list[str]:
    """Network interfaces besides the loopback one; what cannot be read counts as one."""
    try:
        return sorted({path.name for path in pathlib.Path(directory).iterdir()} - {"lo"})
    except OSError as error:
        return [f"unknown: {error.strerror}"]


def hide() -> None:
    """Nobody else's process without a capability may look into this one's memory. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(4, ctypes.c_ulong(0), *[ctypes.c_ulong(0)] * 3):
        raise OSError(ctypes.get_errno(), "prctl")


def limits(seconds: float) -> None:
    """Set in the child before it begins: processor time, memory, no file, no dump."""
    for what, value in (
        (resource.RLIMIT_CPU, max(1, int(seconds))),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        resource.setrlimit(what, (value, value))


class Piece:
    """The process that has one piece's code, its questions and its answers."""

    def __init__(self, program: str, seconds: float) -> None:
        self._seconds = 2 * seconds
        self._until(START_SECONDS)
        self._answers, target = os.pipe()
        self._seen = 0
        self._left = b""
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", program, str(target)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: limits(seconds),
                pass_fds=(target,),
                env={},
            )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(target)

    def _until(self, seconds: float) -> None:
        """What is asked and answered from now on has so long, all together."""
        self._allowed = seconds
        self._end = time.monotonic() + seconds

    def begin(self, code: str) -> None:
        """Hand on the code, and let its own time begin. Raises Unconfined: what goes wrong here is not the code."""
        try:
            if self.answer() != "filtered":
                raise Unconfined(f"no filter of system calls, exit {self.code()}")
            self.ask({"code": code})
            if self.answer() != "received":
                raise Unconfined(f"the process did not get the code, exit {self.code()}")
        except Wrong as error:
            raise Unconfined(f"the process of the code did not start: {error}") from None
        self._until(self._seconds)

    def ask(self, question: dict[str, str]) -> None:
        """Hand on one question. Where nobody reads any more, the answer, which does not come, says it.

        Raises Wrong beyond the deadline.
        """
        assert self._child.stdin is not None
        questions = self._child.stdin.fileno()
        os.set_blocking(questions, False)
        data = json.dumps(question).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError), selectors.DefaultSelector() as ready:
            ready.register(questions, selectors.EVENT_WRITE)
            while data:
                if not ready.select(self._left_s()):
                    raise Wrong(self._late())
                data = data[os.write(questions, data) :]

    def _left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _late(self) -> str:
        return f"no end within {self._allowed:g} s"

    def answer(self) -> str | None:
        """One line; None at the end. Raises Wrong beyond the deadline and the bound."""
        while b"\n" not in self._left:
            if not (more := self._read()):
                return None
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _read(self) -> bytes:
        with selectors.DefaultSelector() as ready:
            ready.register(self._answers, selectors.EVENT_READ)
            if not ready.select(self._left_s()):
                raise Wrong(self._late())
        more = os.read(self._answers, 65536)
        self._seen += len(more)
        if self._seen > RESULT_BYTES:
            raise Wrong(f"more than {RESULT_BYTES} bytes of results")
        return more

    def finish(self) -> None:
        """No more questions. Raises Wrong for an answer that nobody asked for and for an exit that is none."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        if self._left or self._read():
            raise Wrong("an answer that was not asked for")
        if (code := self.code()) != 0:
            raise Wrong(f"ended with {code} after its checks")

    def code(self) -> int:
        """Its exit status. Raises Wrong beyond the deadline."""
        try:
            return self._child.wait(self._left_s())
        except subprocess.TimeoutExpired:
            raise Wrong(self._late()) from None

    def close(self) -> None:
        """Kill what is left of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()
        os.close(self._answers)


def run_piece(piece: dict[str, Any], seconds: float, program: str) -> list[str]:
    """What is wrong with one piece: [] when every check is right. Raises Unconfined, ValueError for a strange check."""
    checks = [(check, *parsed(check)) for check in piece["checks"]]
    process = Piece(program, seconds)
    try:
        process.begin(piece["code"])
        defined = process.answer()
        if defined is None:
            return [f"ended with {process.code()} before its checks"]
        if defined != "defined":
            return [f"the code ends with {defined.removeprefix('error ')}"[:200]]
        wrong = [found for check in checks if (found := _checked(process, *check)) is not None]
        process.finish()
        return wrong
    except Wrong as error:
        return [str(error)[:200]]
    finally:
        process.close()


def _checked(process: Piece, check: str, call: str, kind: str, value: Any) -> str | None:
    """What is wrong with one check. Raises Wrong."""
    token = secrets.token_hex(16)
    process.ask({"token": token, "call": call})
    answer = process.answer()
    if answer is None:
        raise Wrong(f"ended with {process.code()} before its checks")
    given, _, rest = answer.partition(" ")
    what, _, shown = rest.partition(" ")
    if given != token or what not in ("value", "error"):
        raise Wrong("an answer that was not asked for")
    if what == "error":
        return f"{call} ends with {shown}"[:200]
    try:
        seen = ast.literal_eval(shown)
        right = {"equals": seen == value, "true": seen is True, "false": not seen}[kind]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return f"{call} gives no plain value"[:200]
    return None if right else f"{check} is not true"[:200]


def main(source: str, target: str) -> int:
    """Exit code 3 when nothing was executed."""
    asked = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"refused": None, "results": {}}
    try:
        if seen := networks():
            raise Unconfined(f"a network can be seen: {', '.join(seen)}")
        # What the code should give must be nowhere where it could look.
        pathlib.Path(source).unlink()
        hide()
        for piece in asked["pieces"]:
            answer["results"][piece["id"]] = run_piece(piece, float(asked["seconds"]), asked["program"])
    except (Unconfined, OSError, ValueError) as error:
        answer = {"refused": str(error)[:200], "results": {}}
    pathlib.Path(target).write_text(json.dumps(answer), encoding="utf-8")
    return 0 if answer["refused"] is None else 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Runs inside the sandbox's container: executes code of a model, each piece in a process of its own with limits.

Standard library alone; the controller sends this file's text as the container's command. It refuses to execute
anything where a network can be seen.

    python3 -I -c TEXT /work/input.json /work/output.json
    input   {"pieces": [{"id", "code", "checks": [expression]}], "seconds": of each piece}
    output  {"refused": why, or null, "results": {id: [what is wrong]}}
"""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from typing import Any

MEMORY_BYTES = 256 * 2**20
CHILD = """\
import json, sys
piece = json.loads(sys.argv[1])
space = {"__name__": "answer"}
wrong = []
try:
    exec(compile(piece["code"], "answer", "exec"), space)
except BaseException as error:
    wrong.append(f"the code ends with {type(error).__name__}")
else:
    for check in piece["checks"]:
        try:
            if eval(check, space) is not True:
                wrong.append(f"{check} is not true")
        except BaseException as error:
            wrong.append(f"{check} ends with {type(error).__name__}")
print()
print(json.dumps(wrong))
"""


def networks(directory: str = "/sys/class/net") -> list[str]:
    """Network interfaces besides the loopback one; what cannot be read counts as one."""
    try:
        return sorted({path.name for path in pathlib.Path(directory).iterdir()} - {"lo"})
    except OSError as error:
        return [f"unknown: {error.strerror}"]


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


def run_piece(piece: dict[str, Any], seconds: float) -> list[str]:
    """What is wrong with one piece: [] when every check is true."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CHILD, json.dumps({"code": piece["code"], "checks": piece["checks"]})],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: limits(seconds),
        env={},
    )
    end = time.monotonic() + 2 * seconds
    try:
        said, _ = child.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return [f"no end within {2 * seconds:g} s"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    lines = said.decode("utf-8", "replace").splitlines()
    try:
        wrong = json.loads(lines[-1])
    except (IndexError, ValueError):
        return [f"ended with {child.returncode} before its checks"]
    return [str(each)[:200] for each in wrong] if isinstance(wrong, list) else ["no list of what is wrong"]


def main(source: str, target: str) -> int:
    """Exit code 3 when nothing was executed."""
    asked = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
    seen = networks()
    answer: dict[str, Any] = {"refused": None, "results": {}}
    if seen:
        answer["refused"] = f"a network can be seen: {', '.join(seen)}"
    else:
        for piece in asked["pieces"]:
            answer["results"][piece["id"]] = run_piece(piece, float(asked["seconds"]))
    pathlib.Path(target).write_text(json.dumps(answer), encoding="utf-8")
    return 3 if seen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The C++ core under the sanitizers: many callers, forks in between, a shrinking file, stores closed while called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "native"
CORE, COMMON = NATIVE / "engram_store", NATIVE / "common"
FLAGS = ("-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread")


def sanitized(directory: Path, sanitizer: str) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("NOT TESTED: there is no g++")
    program = directory / "stress"
    sources = sorted(str(path) for path in (*COMMON.glob("*.cc"), *CORE.glob("*.cc"), CORE / "test" / "stress.cc"))
    argv = [compiler, *FLAGS, f"-I{COMMON}", f"-fsanitize={sanitizer}", *sources, "-o", str(program)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_many_callers_leave_a_sanitizer_nothing_to_say(tmp_path: Path, sanitizer: str) -> None:
    argv = [str(sanitized(tmp_path, sanitizer)), str(tmp_path), "0.3"]
    setarch = shutil.which("setarch")
    if sanitizer == "thread" and setarch:  # its memory layout has no room for the address randomisation of new kernels
        argv = [setarch, "-R", *argv]
    options = {
        "ASAN_OPTIONS": "detect_leaks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
    }
    done = subprocess.run(argv, env={**os.environ, **options}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("passed\n")

"""The native libraries' stress programs, built with a sanitizer and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trispark.native_build import COMMON, COMPILERS, Library

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread")


def run_stress(library: Library, directory: Path, sanitizer: str, seconds: str) -> str:
    """What it printed; it must end well. Skips where something to build it is missing."""
    machine = os.uname().machine
    compiler = shutil.which(COMPILERS[machine])
    if compiler is None:
        pytest.skip("NOT TESTED: there is no g++")
    base = ROOT / library.sources
    sources = sorted(str(path) for path in (*(ROOT / COMMON).glob("*.cc"), *base.glob("*.cc"), base / "test/stress.cc"))
    included = [f"-I{ROOT / COMMON}"]
    foreign = library.foreign
    if foreign is not None:
        if not foreign.directory.is_dir():
            pytest.skip(f"NOT TESTED: {foreign.package} is not installed")
        included += ["-isystem", str(foreign.directory)]
        for name in foreign.compiled[machine]:
            made = directory / f"{name}.o"
            argv = [compiler.replace("g++", "gcc"), "-O2", "-g", "-c", str(foreign.directory / name), "-o", str(made)]
            subprocess.run(argv, check=True)
            sources.append(str(made))
    stress = directory / "stress"
    argv = [compiler, *FLAGS, *included, f"-fsanitize={sanitizer}", *sources, "-o", str(stress)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    argv = [str(stress), str(directory), seconds]
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
    return done.stdout

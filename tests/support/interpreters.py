"""Other Pythons on this machine, and virtual environments made with them, for the tests of the supported matrix."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[Path]:
    """Files named pythonX.Y on PATH, then those of pyenv, whose shims on PATH may not run."""
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield Path(directory or ".") / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def find_python(versions: Sequence[str]) -> Path | None:
    """The first interpreter that runs, is what its name says and can make virtual environments."""
    for version in versions:
        for path in candidates(version):
            if not os.access(path, os.X_OK):
                continue
            done = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return path
    return None


def other_line() -> list[str]:
    """Versions with the other ansible-core, newest first: 3.11 has the last core for it, later ones share a newer."""
    return ["3.13", "3.12"] if sys.version_info < (3, 12) else ["3.11"]


def make_venv(python: Path, name: str, requirements: Sequence[str]) -> Path:
    """`.trispark/pythons/<name>` with what pip is told to install; kept while told the same. Returns its bin/."""
    directory = ROOT / ".trispark" / "pythons" / name
    stamp = directory / "stamp"
    told = "\n".join(requirements) + "".join(
        hashlib.sha256((ROOT / word.removeprefix("--requirement=")).read_bytes()).hexdigest()
        for word in requirements
        if word.startswith("--requirement=")
    )
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == told):
        run(str(python), "-I", "-m", "venv", "--clear", str(directory))
        pip = [str(directory / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", "--no-compile", "--no-input"]
        run(*pip, "--disable-pip-version-check", "--only-binary=:all:", *requirements)
        site = next((directory / "lib").glob("python3.*/site-packages"))
        (site / "trispark.pth").write_text(f"{ROOT / 'src'}\n{ROOT / 'lab'}\n", encoding="utf-8")
        stamp.write_text(told, encoding="utf-8")
    return directory / "bin"


def run(*argv: str, timeout: float = 600, **environment: str) -> str:
    """Output of a command that must end well; it runs from the root of the project."""
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}: {done.stdout[-4000:]}"
    return done.stdout

"""A virtual environment below .trispark in which the engine's own modules import on a CPU, and unpacked sources of its
releases. Made on demand; nothing else uses it, and removing `.trispark/engine` is always safe.

It needs CPython 3.11 and torch's CPU build, which pip finds only where it is configured to (requirements/
adapters-torch.txt): so it can be refused, and what needs it is then skipped with that reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trispark.engine_api.model import Wheel, load_builds
from trispark.engine_api.wheels import PLACE, wheel_path
from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.machine import LocalMachine, Machine, Outcome, Say
from trispark.host.state import private_directory, state_directory

TORCH_LOCK: Final = "requirements/adapters-torch.txt"
LOCK: Final = "requirements/adapters-engine.txt"
STAND_INS: Final = Path(__file__).parent / "stand_ins"
PYTHON: Final = (3, 11)
PIP_S: Final = 600
LOCK_WAIT_S: Final = 900
STAMP: Final = "stamp.json"
WHY_NOT: Final = "why-not.txt"


class EngineEnvironment:
    """That of one checkout."""

    def __init__(self, root: Path, say: Say, machine: Machine | None = None) -> None:
        self.root = root
        self.directory = root / PLACE
        self.python = self.directory / "venv" / "bin" / "python"
        self._say = say
        self._machine = machine or LocalMachine()

    def ready(self) -> bool:
        """Complete for the locks and releases as they are now."""
        try:
            found = json.loads((self.directory / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return found == self._expected() and self.python.exists()

    def why_not(self) -> str:
        """Why the last attempt to make it was refused; what makes it where there was none."""
        try:
            return (self.directory / WHY_NOT).read_text(encoding="utf-8").strip()
        except OSError:
            return "it was not made yet: ./trispark test does, where torch's CPU build can be had"

    def make(self) -> bool:
        """Make it unless it is complete; whether it was made.

        Raises TS-ADAPTERS-PYTHON, TS-ADAPTERS-TORCH, TS-ADAPTERS-PACKAGES, TS-ADAPTERS-WHEEL, TS-ADAPTERS-PLACE,
        TS-ADAPTERS-LOCKED.
        """
        try:
            with self._alone():
                if self.ready():
                    return False
                try:
                    self._make()
                except TrisparkError as error:
                    (self.directory / WHY_NOT).write_text(f"{error}\n", encoding="utf-8")
                    raise
                (self.directory / WHY_NOT).unlink(missing_ok=True)
                return True
        except OSError as error:
            raise TrisparkError(
                "TS-ADAPTERS-PLACE",
                "the engine's environment cannot be kept",
                where=str(error.filename or self.directory),
                expected="2.2 GB in a directory that can be written to",
                observed=str(error.strerror or error),
                remedy="make room there, or make it writable; .trispark/engine may always be removed",
            ) from error

    def releases(self) -> dict[str, Path]:
        """{version: directory of its unpacked sources, for sys.path}."""
        return {wheel.version: self.directory / "releases" / wheel.version for wheel in self._wheels()}

    def environ(self, release: str, *more: Path) -> dict[str, str]:
        """The environment of a process that imports a release: `more` goes before it on PYTHONPATH; no hook is on."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        path = os.pathsep.join(map(str, (*more, self.releases()[release], STAND_INS)))
        # Without a home of its own the engine would write caches into that of whoever runs this.
        return {**kept, "PYTHONPATH": path, "XDG_CACHE_HOME": str(self.directory / "cache"), "HF_HUB_OFFLINE": "1"}

    def _wheels(self) -> Iterator[Wheel]:
        for build in load_builds(self.root).builds.values():
            if build.wheel is not None:
                yield build.wheel

    def _expected(self) -> Mapping[str, object]:
        locks = {name: hashlib.sha256((self.root / name).read_bytes()).hexdigest() for name in (TORCH_LOCK, LOCK)}
        return {
            "root": str(self.root),
            "locks": locks,
            "wheels": {each.version: each.sha256 for each in self._wheels()},
        }

    @contextmanager
    def _alone(self) -> Iterator[None]:
        state_directory(self.root)
        private_directory(self.directory)
        with alone(
            self.directory / "lock",
            error_id="TS-ADAPTERS-LOCKED",
            doing="setup of the engine's environment",
            wait_s=LOCK_WAIT_S,
            say=self._say,
            machine=self._machine,
        ):
            yield

    def _make(self) -> None:
        python = self._interpreter()
        (self.directory / STAMP).unlink(missing_ok=True)
        venv = self.directory / "venv"
        shutil.rmtree(venv, ignore_errors=True)
        self._say("making .trispark/engine: torch and the engine's modules on this CPU (once, a minute or two)")
        done = self._machine.run([python, "-I", "-m", "venv", str(venv)], timeout_s=120)
        if done.rc != 0:
            raise self._refusal("TS-ADAPTERS-PYTHON", "the environment could not be begun", python, done)
        # torch first and alone: where it cannot be had, that is known within seconds.
        self._pip(TORCH_LOCK, "TS-ADAPTERS-TORCH", "torch's CPU build could not be had")
        with ThreadPoolExecutor(2) as pool:
            unpacked = pool.submit(self._unpack)
            self._pip(LOCK, "TS-ADAPTERS-PACKAGES", "packages of the engine's modules could not be had")
            unpacked.result()
        (self.directory / STAMP).write_text(json.dumps(self._expected()), encoding="utf-8")

    def _interpreter(self) -> str:
        if sys.version_info[:2] == PYTHON:
            return sys.executable
        name = f"python{PYTHON[0]}.{PYTHON[1]}"
        found = self._machine.which(name)
        if found is None or self._machine.run([found, "-I", "-c", "import ensurepip, venv"]).rc != 0:
            raise TrisparkError(
                "TS-ADAPTERS-PYTHON",
                "the engine's modules need another Python here",
                where="PATH",
                expected=f"{name} with its venv module, for which torch's CPU build is locked",
                observed=f"Python {sys.version_info[0]}.{sys.version_info[1]} alone",
                remedy=f"install {name}, or do without these tests",
            )
        return found

    def _pip(self, lock: str, error_id: str, what: str) -> None:
        argv = [str(self.python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        argv += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:", "--retries=1"]
        done = self._machine.run([*argv, f"--requirement={self.root / lock}"], timeout_s=PIP_S)
        if done.rc != 0:
            raise self._refusal(error_id, what, lock, done)

    def _refusal(self, error_id: str, what: str, where: str, done: Outcome) -> TrisparkError:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        return TrisparkError(
            error_id,
            what,
            where=where,
            expected="pip to find every package with its hash",
            observed=(errors[-1] if errors else done.last_line).removeprefix("ERROR:").strip(),
            remedy="check pip's configuration and the network; only tests on the engine's modules need it",
        )

    def _unpack(self) -> None:
        """The releases' files without their libraries, which import without them and are most of the bytes."""
        places = self.releases()
        for old in (self.directory / "releases").glob("*"):
            shutil.rmtree(old)
        for wheel in self._wheels():
            with zipfile.ZipFile(wheel_path(self.root, wheel, self._machine)) as archive:
                names = [name for name in archive.namelist() if not name.endswith(".so")]
                archive.extractall(places[wheel.version], names)

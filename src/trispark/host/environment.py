"""Keeps ``.venv`` equal to the hash lock of its Python. Run by ``./trispark`` with a bare interpreter.

    python -I environment.py ready ROOT    exit 0 when .venv is complete, else 1
    python -I environment.py make ROOT     make it; exit 0, 1 failed, 3 refused before any change, 130 interrupted

The stamp is written last and removed first, so a setup that was killed leaves none and is redone; an flock, which ends
with its process, keeps two setups apart.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    # Started with -I, before there is a .venv that knows the path.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.machine import LocalMachine, Machine, Outcome, Say, say_on_stderr
from trispark.host.packages import PackageInstaller, is_debian_family
from trispark.host.state import PUBLIC_UMASK, state_directory

STAMP = ".trispark-stamp.json"
PIP_DEADLINE_S = 900
VENV_DEADLINE_S = 120
LOCK_WAIT_S = 1200
"""Longer than one setup may take: the other one is waited for, not raced."""


@dataclass(frozen=True)
class Stamp:
    """What a complete ``.venv`` was made of. ``test`` is empty until the test lock was added."""

    root: str
    python: str
    base: str
    run: str
    test: str = ""


@dataclass(frozen=True)
class Locks:
    """The two hash locks of one Python, and the SHA-256 of each."""

    run: Path
    test: Path

    @classmethod
    def of(cls, root: Path, version: tuple[int, int]) -> Locks:
        line = "py311" if version < (3, 12) else "py312"
        return cls(root / "requirements" / f"run-{line}.txt", root / "requirements" / f"test-{line}.txt")

    @staticmethod
    def digest(lock: Path) -> str:
        return hashlib.sha256(lock.read_bytes()).hexdigest()


Install = Callable[[Path, Path], Outcome]


def pip_install(python: Path, lock: Path) -> Outcome:
    """pip with the lock and nothing else: no resolver, no build, no bytecode (Python writes that on first use)."""
    argv = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    argv += [
        "--require-hashes",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
        "--retries=2",
        f"--requirement={lock}",
    ]
    return LocalMachine().run(argv, timeout_s=PIP_DEADLINE_S)


def create_venv(directory: Path) -> None:
    """``python -m venv`` by this interpreter. Raises TS-SETUP-VENV."""
    argv = [sys.executable, "-I", "-m", "venv", "--clear", str(directory)]
    done = LocalMachine().run(argv, timeout_s=VENV_DEADLINE_S)
    if done.rc != 0:
        raise TrisparkError(
            id="TS-SETUP-VENV",
            what="the virtual environment could not be made",
            where=str(directory),
            expected="python -m venv to succeed",
            observed=done.last_line,
            remedy="set TRISPARK_PYTHON to another Python 3.11 to 3.13",
        )


def has_venv_module() -> bool:
    """Debian's python3 comes without ensurepip; its package pythonX.Y-venv brings it."""
    return importlib.util.find_spec("ensurepip") is not None and importlib.util.find_spec("venv") is not None


class Environment:
    """The ``.venv`` of one checkout."""

    def __init__(
        self,
        root: Path,
        say: Say = say_on_stderr,
        machine: Machine | None = None,
        *,
        install: Install = pip_install,
        create: Callable[[Path], None] = create_venv,
        venv_module: Callable[[], bool] = has_venv_module,
    ) -> None:
        self.root = root
        self.directory = root / ".venv"
        self.python = self.directory / "bin" / "python"
        self.locks = Locks.of(root, (sys.version_info[0], sys.version_info[1]))
        self._say = say
        self._machine = machine or LocalMachine()
        self._install = install
        self._create = create
        self._venv_module = venv_module

    def stamp(self) -> Stamp | None:
        try:
            return Stamp(**json.loads((self.directory / STAMP).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _expected(self, test: str) -> Stamp:
        version = "{}.{}.{}".format(*sys.version_info[:3])
        return Stamp(str(self.root), version, sys.base_prefix, Locks.digest(self.locks.run), test)

    def ready(self) -> bool:
        """Complete for the run lock as it is now, with or without the test tools."""
        found = self.stamp()
        return found is not None and self.python.exists() and found == self._expected(found.test)

    def test_ready(self) -> bool:
        found = self.stamp()
        return self.ready() and found is not None and found.test == Locks.digest(self.locks.test)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = state_directory(self.root) / "setup.lock"
        with alone(
            lock, error_id="TS-SETUP-LOCKED", doing="setup", wait_s=LOCK_WAIT_S, say=self._say, machine=self._machine
        ):
            yield

    def make(self) -> bool:
        """Make ``.venv`` from the run lock unless it is complete; returns whether it was made.

        Raises TS-SETUP-VENV, TS-SETUP-PACKAGES, and on a Debian without the venv module what apt and sudo raise.
        """
        with self._alone():
            if self.ready():
                return False
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            self._ensure_venv_module(version)
            self._say(f"making .venv with Python {version} from {self.locks.run.name} (once, about half a minute)")
            if self.directory.is_symlink():
                self.directory.unlink()
            elif self.directory.exists():
                # The stamp goes first: what is left of a removal that is killed must not look complete.
                (self.directory / STAMP).unlink(missing_ok=True)
                shutil.rmtree(self.directory)
            self._create(self.directory)
            self._add(self.locks.run)
            self._write_paths()
            self._write_stamp(self._expected(""))
            return True

    def make_test(self) -> bool:
        """Add the test lock, which holds the run lock's versions; returns whether anything was installed."""
        self.make()
        with self._alone():
            if self.test_ready():
                return False
            self._say(f"adding the test tools from {self.locks.test.name} to .venv (once)")
            (self.directory / STAMP).unlink()
            self._add(self.locks.test)
            self._write_stamp(self._expected(Locks.digest(self.locks.test)))
            return True

    def _ensure_venv_module(self, version: str) -> None:
        if self._venv_module():
            return
        package = f"python{version}-venv"
        system_python = Path(sys.base_prefix) == Path("/usr")
        if not (system_python and is_debian_family(self._machine)):
            raise TrisparkError(
                id="TS-SETUP-VENVMODULE",
                what="this Python cannot make virtual environments",
                where=sys.executable,
                expected="its modules venv and ensurepip",
                observed="at least one is missing",
                remedy="install them, or set TRISPARK_PYTHON to a Python 3.11 to 3.13 that has them",
            )
        by = "" if self._machine.user()[0] == 0 else " (with sudo)"
        self._say(f"python3 has no venv module: installing {package}{by}")
        PackageInstaller(self._machine, self._say).install([package])

    def _add(self, lock: Path) -> None:
        done = self._install(self.python, lock)
        if done.rc == 0:
            return
        if done.rc < 0:
            raise KeyboardInterrupt
        errors = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        last = (errors or [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"])[-1]
        raise TrisparkError(
            id="TS-SETUP-PACKAGES",
            what="the locked Python packages could not be installed",
            where=str(lock.relative_to(self.root)),
            expected="pip to reach its package index and to find every hash",
            observed=last.removeprefix("ERROR:").strip(),
            remedy="check the network and pip's configuration, then run the same command again",
        )

    def _write_paths(self) -> None:
        """Make the tree importable, also for ansible-playbook and pytest started by hand."""
        site = next((self.directory / "lib").glob("python3.*/site-packages"))
        (site / "trispark.pth").write_text(f"{self.root / 'src'}\n{self.root / 'lab'}\n", encoding="utf-8")

    def _write_stamp(self, stamp: Stamp) -> None:
        partial = self.directory / f"{STAMP}.partial"
        partial.write_text(json.dumps(asdict(stamp)) + "\n", encoding="utf-8")
        partial.replace(self.directory / STAMP)


def main(arguments: list[str]) -> int:
    """The exit status that ``./trispark`` hands on."""
    verb, root = arguments
    environment = Environment(Path(root), lambda line: say_on_stderr(f"trispark: {line}"))
    if verb == "ready":
        return 0 if environment.ready() else 1
    try:
        environment.make()
    except TrisparkError as error:
        say_on_stderr(f"trispark: {error}")
        return 3 if error.id in ("TS-HOST-SUDO", "TS-SETUP-LOCKED", "TS-SETUP-VENVMODULE") else 1
    except OSError as error:
        say_on_stderr(f"trispark: TS-SETUP-FILES: {error.strerror}: {error.filename}")
        return 1
    except KeyboardInterrupt:
        say_on_stderr("trispark: the setup was interrupted; the next call redoes it")
        return 130
    return 0


if __name__ == "__main__":
    os.umask(PUBLIC_UMASK)
    sys.exit(main(sys.argv[1:]))

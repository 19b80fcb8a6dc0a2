"""The engine's wheels, downloaded once by pip with their hash and kept below .trispark; only ever read or unpacked."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Final

from trispark.engine_api.model import Wheel
from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine

PLACE: Final = Path(".trispark/engine")
DOWNLOAD_S: Final = 300


def wheel_path(root: Path, wheel: Wheel, machine: Machine | None = None) -> Path:
    """The wheel on this machine, downloaded where it is not there or is another file.

    Raises TS-ADAPTERS-WHEEL: no index answers, or it does not have the file; TS-ADAPTERS-HASH: the file has another
    hash; TS-ADAPTERS-PLACE: it cannot be read or kept here.
    """
    folder = root / PLACE / "wheels"
    try:
        return _kept(folder, wheel, machine)
    except OSError as error:
        raise TrisparkError(
            "TS-ADAPTERS-PLACE",
            "the engine's wheel cannot be read or kept",
            where=str(error.filename or folder),
            expected="a directory that can be written to",
            observed=str(error.strerror or error),
            remedy="make room there, or make it writable; .trispark/engine may always be removed",
        ) from error


def _kept(folder: Path, wheel: Wheel, machine: Machine | None) -> Path:
    path = folder / wheel.file
    if path.is_file() and _sha256(path) == wheel.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as name:
        fresh = Path(name)
        (fresh / "lock.txt").write_text(f"sglang=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        done = (machine or LocalMachine()).run(_pip(wheel, fresh), timeout_s=DOWNLOAD_S)
        made = fresh / wheel.file
        if done.rc != 0 or not made.is_file():
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
            raise TrisparkError(
                "TS-ADAPTERS-WHEEL",
                "the engine's wheel could not be had",
                where=f"sglang=={wheel.version}",
                expected=f"{wheel.file} with the locked hash from pip's package index",
                observed=(errors[-1] if errors else done.last_line).removeprefix("ERROR:").strip(),
                remedy="check the network and pip's configuration, then run the same command again",
            )
        if _sha256(made) != wheel.sha256:  # pip has compared it; this is for a pip that was told not to
            raise TrisparkError(
                "TS-ADAPTERS-HASH",
                "the engine's wheel is another file than the locked one",
                where=wheel.file,
                expected=wheel.sha256,
                observed=_sha256(made),
                remedy="find out what pip is configured to give in its place",
            )
        made.replace(path)
    return path


def _pip(wheel: Wheel, folder: Path) -> list[str]:
    """The file for one Python and platform, so that every machine reads the same bytes."""
    return [
        *(sys.executable, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--require-hashes", "--no-deps", "--only-binary=:all:", "--retries=2"),
        *(f"--python-version={wheel.python}", f"--platform={wheel.platform}", f"--dest={folder}"),
        f"--requirement={folder / 'lock.txt'}",
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Builds the agent: one zipapp with its dependencies inside, the same bytes from the same input.

Runs on the controller. The packing library goes in for every architecture. Only wheels without compiled parts are
taken, by their hashes from `requirements/node.txt`, for the oldest Python that a node may have, whatever Python builds.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from trispark_node.bytecode import INPUT_NAME
from trispark_node.errors import AgentError

LOCK = "requirements/node.txt"
SHEBANG = b"#!/usr/bin/env python3\n"
OLDEST_PYTHON = "3.10"
PIP_DEADLINE_S = 900
"""Meanwhile the lab's cache is locked; as for the packages of its engine image."""
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_MAIN = b"""import runpy
import sys
from pathlib import Path

import trispark_node_bytecode

trispark_node_bytecode.prefer_compiled(Path(sys.argv[0]))
runpy.run_module('trispark_node', run_name='__main__', alter_sys=True)
"""
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|AUTHORS)", re.IGNORECASE)


def build(repo: Path, out: Path) -> str:
    """Write the agent to `out` and return its SHA-256. An `out` made from the same input is left as it is.

    Raises TS-BUILD-AGENT when the dependencies cannot be had as locked.
    """
    sources = dict(_sources(repo))
    lock = repo / LOCK
    fingerprint = _fingerprint(sources, lock.read_bytes())
    if _made_from(out, fingerprint):
        return _sha256(out)
    with tempfile.TemporaryDirectory(prefix="trispark-node-") as scratch:
        target = Path(scratch)
        _install(lock, target)
        members = {**dict(_dependencies(target)), **sources}
    members["__main__.py"] = _MAIN
    members[INPUT_NAME] = fingerprint.encode()
    _write(out, members)
    return _sha256(out)


def _sources(repo: Path) -> Iterator[tuple[str, bytes]]:
    package = repo / "src" / "trispark_node"
    for path in sorted(package.glob("*.py")):
        if path.name == "bytecode.py":  # by itself, so that using it imports nothing else from the file
            yield "trispark_node_bytecode.py", path.read_bytes()
        elif path.name != "build.py":  # of no use on a node
            yield f"trispark_node/{path.name}", path.read_bytes()
    native = package / "native"
    for path in sorted(found for found in native.rglob("*") if found.is_file()):
        yield f"trispark_node/native/{path.relative_to(native).as_posix()}", path.read_bytes()
    for name in ("LICENSE", "NOTICE"):
        if (repo / name).exists():
            yield name, (repo / name).read_bytes()


def _fingerprint(sources: dict[str, bytes], lock: bytes) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name, data in sorted({**sources, LOCK: lock}.items()):
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _made_from(out: Path, fingerprint: str) -> bool:
    try:
        with zipfile.ZipFile(out) as archive:
            return archive.read(INPUT_NAME).decode() == fingerprint and archive.testzip() is None
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def _install(lock: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--require-hashes", "--requirement", str(lock), "--target", str(target)]
    # `any` admits only py3-none-any wheels: charset-normalizer, for one, has compiled ones beside it.
    command += ["--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none"]
    command += ["--python-version", OLDEST_PYTHON]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PIP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise AgentError(
            "TS-BUILD-AGENT",
            "the agent's dependencies cannot be installed",
            where=str(lock),
            expected=f"pip's end within {PIP_DEADLINE_S} s",
            observed="none; it was killed",
            remedy="see that the package index answers, then run the same again",
        ) from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise AgentError(
            "TS-BUILD-AGENT",
            "the agent's dependencies cannot be installed",
            where=str(lock),
            expected="pure Python wheels with the locked hashes",
            observed=said[-1] if said else f"pip ended with {done.returncode}",
            remedy="see that the package index is reachable, or compile the lock again (requirements/compile)",
        )


def _dependencies(target: Path) -> Iterator[tuple[str, bytes]]:
    """Modules and their data, and of the metadata the name, the version and the licences."""
    for path in sorted(target.rglob("*")):
        relative = path.relative_to(target)
        if not path.is_file() or "__pycache__" in relative.parts or relative.parts[0] == "bin":
            continue
        if relative.suffix in (".so", ".pyd"):
            raise AgentError(
                "TS-BUILD-AGENT",
                "a dependency has a compiled part",
                where=relative.as_posix(),
                expected="pure Python",
                observed=relative.suffix,
                remedy="lock another version of it",
            )
        in_metadata = relative.parts[0].endswith(".dist-info")
        wanted = relative.name == "METADATA" or _LICENCE.search(relative.as_posix().partition("/")[2])
        if not in_metadata or wanted:
            yield relative.as_posix(), path.read_bytes()


def _write(out: Path, members: dict[str, bytes]) -> None:
    """Stored, not deflated: compressors differ in their output from one version to the next."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.new")
    with temporary.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in sorted(members.items()):
                info = zipfile.ZipInfo(name, _TIMESTAMP)
                info.create_system = 3
                info.external_attr = 0o100644 << 16
                archive.writestr(info, data)
    temporary.chmod(0o755)
    temporary.replace(out)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

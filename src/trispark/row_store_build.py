"""Builds the engine's Engram row store from native/engram_store, for every architecture, the same bytes each time.

    python -m trispark.row_store_build           write adapters/engram_store/lib and its manifest
    python -m trispark.row_store_build --check   build into a temporary directory and compare

Debian 12's g++ and g++-aarch64-linux-gnu make the committed libraries; no engine needs a compiler. The bytes depend on
the compiler's version, which the manifest names, and on nothing else of the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError

SOURCES: Final = Path("native/engram_store")
LIBRARIES: Final = Path("adapters/engram_store/lib")
LIBRARY: Final = "libengram_store.so"
MANIFEST: Final = "manifest.json"
COMPILERS: Final[Mapping[str, str]] = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
"""{platform.machine() of the engine: compiler}."""
PACKAGES: Final = "g++ g++-aarch64-linux-gnu"
FLAGS: Final = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-pthread"),
    *(
        "-fno-exceptions",
        "-fno-rtti",
        "-fvisibility=hidden",
        "-ffunction-sections",
        "-fdata-sections",
        "-fstack-protector-strong",
    ),
    *("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"),
    *("-static-libstdc++", "-static-libgcc"),
    *(
        "-Wl,--gc-sections",
        "-Wl,--as-needed",
        "-Wl,--build-id=none",
        "-Wl,--version-script=exports.map",
        "-Wl,-z,defs",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-s",
    ),
)


def source_files(root: Path) -> list[Path]:
    """What the libraries are made of, sorted by name."""
    base = root / SOURCES
    return sorted(path for pattern in ("*.cc", "*.h", "*.map") for path in base.glob(pattern))


def source_sha256(root: Path) -> str:
    """Over names, contents and flags: another value means that the committed libraries are not of these sources."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in source_files(root):
        digest.update(f"\0{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def compiler_version(compiler: str) -> str:
    """First line of its `--version`. Raises TS-STORE-COMPILER when it is not there."""
    program = shutil.which(compiler)
    if program is None:
        raise TrisparkError(
            "TS-STORE-COMPILER",
            "a compiler is missing",
            where="PATH",
            expected=compiler,
            observed="none",
            remedy=f"apt-get install {PACKAGES}",
        )
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def build(root: Path, architecture: str, library: Path) -> dict[str, Any]:
    """Write the library of `architecture`; returns its line of the manifest. Raises TS-STORE-COMPILER, -BUILD."""
    compiler = COMPILERS[architecture]
    version = compiler_version(compiler)
    base = (root / SOURCES).resolve()
    names = [path.name for path in source_files(root) if path.suffix == ".cc"]
    argv = [compiler, *FLAGS, f"-ffile-prefix-map={base}=.", *names, "-o", str(library.resolve())]
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    library.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(argv, cwd=base, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrisparkError(
            "TS-STORE-BUILD",
            "the row store does not compile",
            where=str(base),
            expected="a library",
            observed=done.stderr[-2000:],
            remedy="correct the source, or use the compiler that the manifest names",
        )
    library.chmod(0o644)
    return {
        "file": f"{architecture}/{LIBRARY}",
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "compiler": version,
    }


def build_all(root: Path, target: Path) -> dict[str, Any]:
    """Every library below `target`, and the manifest beside them; returns the manifest."""
    libraries = {name: build(root, name, target / name / LIBRARY) for name in COMPILERS}
    manifest = {"schema_version": 1, "source_sha256": source_sha256(root), "libraries": libraries}
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


def differences(root: Path) -> list[str]:
    """What a build of these sources has otherwise than the committed files, by path; empty when nothing."""
    with tempfile.TemporaryDirectory() as directory:
        build_all(root, Path(directory))
        names = [MANIFEST, *(f"{name}/{LIBRARY}" for name in COMPILERS)]
        return [name for name in names if _bytes(Path(directory) / name) != _bytes(root / LIBRARIES / name)]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def main(argv: Sequence[str] | None = None) -> int:
    """0 when built, or when nothing differs."""
    parser = argparse.ArgumentParser(prog="trispark.row_store_build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, change nothing")
    root = Path(__file__).resolve().parents[2]
    try:
        if parser.parse_args(argv).check:
            found = differences(root)
            print("\n".join(f"differs: {name}" for name in found) or "the committed libraries are those of the sources")
            return 1 if found else 0
        print(json.dumps(build_all(root, root / LIBRARIES), indent=2, sort_keys=True))
    except TrisparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

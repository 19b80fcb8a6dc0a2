"""Builds the project's native libraries from native/, for every architecture, the same bytes each time.

    python -m trispark.native_build [NAME ...]     write libraries and manifests
    python -m trispark.native_build --check        build into a temporary directory and compare

Debian 12's g++ and g++-aarch64-linux-gnu make the committed libraries; no engine and no node needs a compiler. The
bytes depend on the compiler's version, which the manifest names, on foreign sources with the hashes of a lock, and on
nothing else of the machine.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError

COMMON: Final = Path("native/common")
"""Sources of every library."""
MANIFEST: Final = "manifest.json"
COMPILERS: Final[Mapping[str, str]] = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
"""{platform.machine() of where it runs: compiler}."""
PACKAGES: Final = "g++ g++-aarch64-linux-gnu"
CODE_FLAGS: Final = ("-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")
FLAGS: Final = (
    *("-std=c++20", "-shared", "-pthread", *CODE_FLAGS, "-fno-exceptions", "-fno-rtti", "-fstack-protector-strong"),
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


@dataclass(frozen=True)
class Foreign:
    """Sources that a Debian package brings, in `directory`; `lock`, beside ours, has `sha256  name` of each file."""

    name: str
    version: str
    package: str
    directory: Path
    lock: str
    compiled: Mapping[str, tuple[str, ...]]
    """{architecture: names of what is compiled}."""


BLAKE3: Final = Foreign(
    name="BLAKE3",
    version="1.3.1",
    package="librust-blake3-dev",
    directory=Path("/usr/share/cargo/registry/blake3-1.3.1/c"),
    lock="blake3.lock",
    compiled={
        "x86_64": (
            *("blake3.c", "blake3_dispatch.c", "blake3_portable.c"),
            *(f"blake3_{kind}_x86-64_unix.S" for kind in ("sse2", "sse41", "avx2", "avx512")),
        ),
        "aarch64": ("blake3.c", "blake3_dispatch.c", "blake3_portable.c", "blake3_neon.c"),
    },
)


@dataclass(frozen=True)
class Library:
    """`sources` become `target`/ARCHITECTURE/lib`name`.so, with a manifest in `target`."""

    name: str
    sources: Path
    target: Path
    foreign: Foreign | None = None

    @property
    def file(self) -> str:
        return f"lib{self.name}.so"

    def files(self, root: Path) -> list[Path]:
        """Our sources, those of all libraries first, each sorted by name."""
        return [
            path
            for base in (root / COMMON, root / self.sources)
            for path in sorted(found for pattern in ("*.cc", "*.h", "*.map", "*.lock") for found in base.glob(pattern))
        ]

    def source_sha256(self, root: Path) -> str:
        """Over names, contents and flags: another value means that the committed files are not of these sources."""
        digest = hashlib.sha256(" ".join(FLAGS).encode())
        for path in self.files(root):
            digest.update(f"\0{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
        return digest.hexdigest()


STORE: Final = Library("engram_store", Path("native/engram_store"), Path("adapters/engram_store/lib"))
PACK: Final = Library("engram_pack", Path("native/engram_pack"), Path("src/trispark_node/native"), BLAKE3)
LIBRARIES: Final = {library.name: library for library in (STORE, PACK)}


def compiler_version(compiler: str) -> str:
    """First line of its `--version`. Raises TS-NATIVE-COMPILER when it is not there."""
    done = subprocess.run([_program(compiler), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def _program(compiler: str) -> str:
    program = shutil.which(compiler)
    if program is None:
        raise TrisparkError(
            "TS-NATIVE-COMPILER",
            "a compiler is missing",
            where="PATH",
            expected=compiler,
            observed="none",
            remedy=f"apt-get install {PACKAGES}",
        )
    return program


def locked(foreign: Foreign, lock: Path) -> dict[str, str]:
    """{name: sha256} of the lock, which those on this machine have. Raises TS-NATIVE-FOREIGN."""
    lines = [line.split() for line in lock.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    hashes = {name: digest for digest, name in lines}
    for name, expected in hashes.items():
        path = foreign.directory / name
        observed = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        if observed != expected:
            raise TrisparkError(
                "TS-NATIVE-FOREIGN",
                f"a source of {foreign.name} is not the locked one",
                where=str(path),
                expected=f"sha256 {expected}",
                observed=observed,
                remedy=f"apt-get install {foreign.package} ({foreign.version})",
            )
    return hashes


def build(root: Path, library: Library, architecture: str, out: Path) -> dict[str, Any]:
    """Write the library for `architecture`; returns its line of the manifest.

    Raises TS-NATIVE-COMPILER, -FOREIGN, -BUILD.
    """
    compiler = COMPILERS[architecture]
    version = compiler_version(compiler)
    base = (root / library.sources).resolve()
    ours = [os.path.relpath(path.resolve(), base) for path in library.files(root) if path.suffix == ".cc"]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        objects = _foreign_objects(library, base, architecture, Path(scratch))
        included = [f"-I{os.path.relpath((root / COMMON).resolve(), base)}"]
        if library.foreign is not None:
            included += ["-isystem", str(library.foreign.directory)]
        prefix = f"-ffile-prefix-map={base.parent}=."
        _compile([_program(compiler), *FLAGS, prefix, *included, *ours, *objects, "-o", str(out.resolve())], base)
    out.chmod(0o644)
    return {
        "file": f"{architecture}/{library.file}",
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "compiler": version,
    }


def _foreign_objects(library: Library, base: Path, architecture: str, scratch: Path) -> list[str]:
    foreign = library.foreign
    if foreign is None:
        return []
    hashes = locked(foreign, base / foreign.lock)
    compiler = _program(COMPILERS[architecture].replace("g++", "gcc"))
    objects = []
    for name in foreign.compiled[architecture]:
        if name not in hashes:
            raise LookupError(f"{foreign.lock} does not have {name}")
        made = scratch / f"{name}.o"
        prefix = f"-ffile-prefix-map={foreign.directory}=."
        _compile([compiler, *CODE_FLAGS, prefix, "-c", str(foreign.directory / name), "-o", str(made)], base)
        objects.append(str(made))
    return objects


def _compile(argv: Sequence[str], base: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    done = subprocess.run(argv, cwd=base, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrisparkError(
            "TS-NATIVE-BUILD",
            "a native library does not compile",
            where=str(base),
            expected="a library",
            observed=done.stderr[-2000:],
            remedy="correct the source, or use the compiler that the manifest names",
        )


def build_all(root: Path, library: Library, target: Path) -> dict[str, Any]:
    """The library of every architecture below `target`, and the manifest beside them; returns the manifest."""
    built = {name: build(root, library, name, target / name / library.file) for name in COMPILERS}
    manifest: dict[str, Any] = {
        "schema_version": 1,
        "source_sha256": library.source_sha256(root),
        "libraries": built,
    }
    if library.foreign is not None:
        foreign = library.foreign
        files = locked(foreign, root / library.sources / foreign.lock)
        manifest["foreign"] = {foreign.name: {"version": foreign.version, "package": foreign.package, "files": files}}
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


def differences(root: Path, library: Library) -> list[str]:
    """What a build of these sources has otherwise than the committed files, by path; empty when nothing."""
    with tempfile.TemporaryDirectory() as directory:
        build_all(root, library, Path(directory))
        names = [MANIFEST, *(f"{name}/{library.file}" for name in COMPILERS)]
        pairs = ((library.target / name, Path(directory) / name) for name in names)
        return [str(path) for path, built in pairs if _bytes(built) != _bytes(root / path)]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def main(argv: Sequence[str] | None = None) -> int:
    """0 when built, or when nothing differs."""
    parser = argparse.ArgumentParser(prog="trispark.native_build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, change nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIBRARIES)}; all when none is given")
    given = parser.parse_args(argv)
    if unknown := set(given.names) - set(LIBRARIES):
        parser.error(f"no such library: {', '.join(sorted(unknown))}")
    root = Path(__file__).resolve().parents[2]
    chosen = [LIBRARIES[name] for name in given.names or LIBRARIES]
    try:
        if given.check:
            found = [name for library in chosen for name in differences(root, library)]
            print("\n".join(f"differs: {name}" for name in found) or "the committed libraries are those of the sources")
            return 1 if found else 0
        made = {library.name: build_all(root, library, root / library.target) for library in chosen}
        print(json.dumps(made, indent=2, sort_keys=True))
    except TrisparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds the adapters' GPU kernels from native/twin_gemm, the same bytes each time.

    python -m trispark.device_build             write the kernels and their manifest
    python -m trispark.device_build --check     build into a temporary directory and compare

The result holds machine code for compute capability 9.0 and 12.1 and no host code: it is loaded through the CUDA driver
on hosts of any architecture, and no engine needs a compiler. The bytes depend on nvcc's version, which the manifest
names, and on nothing else of the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError

SOURCE: Final = Path("native/twin_gemm/twin_gemm.cu")
TARGET: Final = Path("adapters/trispark_adapters/lib")
FILE: Final = "twin_gemm.fatbin"
MANIFEST: Final = "twin_gemm.json"
CAPABILITIES: Final = ("90", "121")
FLAGS: Final = (
    *("-std=c++17", "-O3", "--fatbin", "-Werror", "all-warnings"),
    *(f"-gencode=arch=compute_{each},code=sm_{each}" for each in CAPABILITIES),
)


def source_sha256(root: Path) -> str:
    """Over contents and flags: another value means that the committed kernels are not of this source."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    digest.update(hashlib.sha256((root / SOURCE).read_bytes()).digest())
    return digest.hexdigest()


def build(root: Path, target: Path) -> dict[str, str]:
    """Write kernels and manifest into `target`; returns the manifest. Raises TS-NATIVE-COMPILER, -BUILD."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise TrisparkError(
            "TS-NATIVE-COMPILER",
            "a compiler is missing",
            where="PATH",
            expected="nvcc",
            observed="none",
            remedy="install the CUDA toolkit that the manifest names",
        )
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    target.mkdir(parents=True, exist_ok=True)
    source = (root / SOURCE).resolve()
    argv = [nvcc, *FLAGS, "-o", str((target / FILE).resolve()), source.name]
    done = subprocess.run(argv, cwd=source.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrisparkError(
            "TS-NATIVE-BUILD",
            "a native library does not compile",
            where=str(SOURCE),
            expected="kernels",
            observed=(done.stdout + done.stderr)[-2000:],
            remedy="correct the source, or use the compiler that the manifest names",
        )
    (target / FILE).chmod(0o644)
    manifest = {
        "file": FILE,
        "sha256": hashlib.sha256((target / FILE).read_bytes()).hexdigest(),
        "source_sha256": source_sha256(root),
        "compiler": next(line for line in version if "release" in line).strip(),
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


def differences(root: Path) -> list[str]:
    """Committed files that a build of this source has otherwise; empty when none."""
    with tempfile.TemporaryDirectory() as directory:
        build(root, Path(directory))
        return [
            str(TARGET / name)
            for name in (FILE, MANIFEST)
            if not (root / TARGET / name).is_file()
            or (root / TARGET / name).read_bytes() != (Path(directory) / name).read_bytes()
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """0 when built, or when nothing differs."""
    parser = argparse.ArgumentParser(prog="trispark.device_build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed kernels, change nothing")
    given = parser.parse_args(argv)
    root = Path(__file__).resolve().parents[2]
    try:
        if given.check:
            found = differences(root)
            print("\n".join(f"differs: {name}" for name in found) or "the committed kernels are those of the source")
            return 1 if found else 0
        print(json.dumps(build(root, root / TARGET), indent=2, sort_keys=True))
    except TrisparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

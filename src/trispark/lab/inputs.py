"""Cached inputs of the lab that other parts make: site-packages and checkpoint; keyed by their sources."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path
from typing import Final

from trispark.agent_file import missing_source
from trispark.host import Say
from trispark.lab.files import hash_files, make_directory, prune, source_files
from trispark.lab.layout import Paths
from trispark.lab.programs import run

IMAGE_PYTHON: Final = "3.11"
"""Python of Debian 12, which the base image has."""
GLIBC_MINORS: Final = (36, 34, 31, 28, 27, 24, 17)
"""glibc 2.x of the wheel tags that run on Debian 12 (glibc 2.36); pip expands none of them by itself."""
ENGINE_PACKAGE: Final = "trispark_lab"
CHECKPOINT_MODULE: Final = "make_checkpoint"
PIP_DEADLINE_S: Final = 900.0
CHECKPOINT_DEADLINE_S: Final = 600.0


def ensure_site_packages(paths: Paths, machine: str, say: Say) -> Path:
    """Directory with the packages of requirements/engine.txt for the image's Python on `machine` (x86_64, aarch64)."""
    lock = paths.repo / "requirements" / "engine.txt"
    if not lock.is_file():
        raise missing_source(lock)
    key = hash_files(lock.parent, [lock], IMAGE_PYTHON, machine, "without scripts")[:12]
    target = paths.cache / f"site-packages-{key}"

    def fill(partial: Path) -> None:
        say("installing the engine image's packages")
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
        run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
                *("--require-hashes", "--only-binary=:all:", "--target", str(partial)),
                *(f"--python-version={IMAGE_PYTHON}", "--implementation=cp", *platforms),
                *(f"--platform=manylinux2014_{machine}", "-r", str(lock)),
            ],
            "TS-LAB-PACKAGES",
            "pip could not install the engine image's packages",
            timeout_s=PIP_DEADLINE_S,
        )
        for tests in sorted(partial.rglob("tests")):
            if tests.is_dir():
                shutil.rmtree(tests)
        without_scripts(partial)
        for stub in [*partial.rglob("*.pyi"), *partial.rglob("*.pyx"), *partial.rglob("*.a")]:
            stub.unlink()

    make_directory(target, fill)
    prune(paths.cache, "site-packages-", [target.name])
    return target


def without_scripts(site_packages: Path) -> None:
    """Remove the commands that pip makes: nothing calls them, and they name the interpreter of this machine."""
    if (site_packages / "bin").is_dir():
        shutil.rmtree(site_packages / "bin")
    for record in site_packages.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.removeprefix("../../").startswith("bin/")]
        record.write_text("".join(kept), encoding="utf-8")


def ensure_checkpoint(paths: Paths, say: Say) -> Path:
    """Directory of the lab's checkpoint, keyed by the maker's sources and the corpus; the engine's maker fills it."""
    lab = paths.repo / "lab"
    maker = lab / ENGINE_PACKAGE / f"{CHECKPOINT_MODULE}.py"
    if not maker.is_file():
        raise missing_source(maker)
    sources = [*import_closure(lab, ENGINE_PACKAGE, CHECKPOINT_MODULE), *source_files(lab / "corpus")]
    target = paths.cache / f"checkpoint-{hash_files(lab, sources)[:12]}"

    def fill(partial: Path) -> None:
        say("making the checkpoint, once")
        run(
            [sys.executable, "-m", f"{ENGINE_PACKAGE}.{CHECKPOINT_MODULE}", str(partial)],
            "TS-LAB-CHECKPOINT",
            "the checkpoint maker failed",
            timeout_s=CHECKPOINT_DEADLINE_S,
            env={"PYTHONPATH": str(lab)},
        )

    make_directory(target, fill)
    return target


def import_closure(root: Path, package: str, module: str) -> list[Path]:
    """Files of `package` that importing `package.module` reads, by their import statements; the package itself too.

    Only those decide the checkpoint: an edit of the engine's server must not make a new one.
    """
    directory = root / package
    found: dict[str, Path] = {}
    queue = ["__init__", module]
    while queue:
        name = queue.pop()
        path = directory / f"{name}.py"
        if name in found or not path.is_file():
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            queue.extend(_imported(node, package))
    return sorted(found.values())


def _imported(node: ast.AST, package: str) -> list[str]:
    """Top-level modules of `package` that an import statement names, absolute or relative."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = f"{package}.{base}".rstrip(".")
        names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
    else:
        return []
    return [name.split(".")[1] for name in names if name.startswith(f"{package}.")]

"""A built image with a root file system, and keys of ssh-keygen, for tests of provenance."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from trispark.images.built import BuiltImage, Dependency

BUILT = BuiltImage(
    name="lab-engine",
    repository="registry.example:5000/trispark/lab-engine",
    manifest_digest="sha256:" + "a" * 64,
    config_digest="sha256:" + "b" * 64,
    architecture="amd64",
    dockerfile="Dockerfiles/lab-engine/Dockerfile",
    dockerfile_sha256="c" * 64,
    base="registry.example:5000/trispark/base",
    base_digest="sha256:" + "d" * 64,
    arguments={"PYTHON": "3.11"},
    context={"trispark_lab/rank.py": "1" * 64, "trispark_lab/head.py": "2" * 64, "requirements.txt": "3" * 64},
    dependencies=(
        Dependency("numpy", "2.4.0", "pkg:pypi/numpy@2.4.0", "4" * 64),
        Dependency("libc6", "2.36-9", "pkg:deb/debian/libc6@2.36-9?arch=amd64", "5" * 64),
    ),
    commit="e" * 40,
)

ROOT_FILES = {
    "etc/os-release": 'PRETTY_NAME="Debian"\nID=debian\n',
    "var/lib/dpkg/status": (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\nDescription: C\n"
        " Version: not this one\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n\n"
        "Package: tzdata\nStatus: install ok installed\nArchitecture: all\nVersion: 2024a-0+deb12u1\n"
    ),
    "usr/lib/python3/site-packages/numpy-2.4.0.dist-info/METADATA": "Name: numpy\nVersion: 2.4.0\n\nVersion: 9\n",
    "usr/lib/python3/site-packages/numpy-2.4.0.dist-info/RECORD": "numpy/__init__.py,,\n",
    "opt/x/Typing_Ext-1.dist-info/METADATA": "Name: Typing_Ext\nVersion: 1\n",
    "usr/bin/true": "no package\n",
}


def built(**changes: Any) -> BuiltImage:
    return replace(BUILT, **changes)


def write_root(directory: Path, files: dict[str, str] | None = None) -> Path:
    for name, text in (ROOT_FILES if files is None else files).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def make_key(directory: Path, name: str, passphrase: str = "") -> Path:
    """The private key; its public one is beside it."""
    path = directory / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def allow(path: Path, *entries: tuple[str, Path, str]) -> Path:
    """An allowed_signers file of (name, private key, options)."""
    lines = []
    for name, key, options in entries:
        public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        lines.append(" ".join(part for part in (name, options, public) if part))
    path.write_text("\n".join(lines) + "\n")
    return path

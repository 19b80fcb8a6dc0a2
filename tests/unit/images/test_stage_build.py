"""The stage of the canary's Dockerfile that needs nothing from outside, built by the Docker Engine of this machine.

Without a Docker Engine it is left out, with TRISPARK_REQUIRE_DOCKER=1 it fails.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[3]
OVERLAY = "sglang/kernels/ops/attention/flash_mla_sm120.py"


def docker(*arguments: str) -> bytes:
    done = subprocess.run(["docker", *arguments], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(autouse=True)
def docker_engine() -> None:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=30)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        required = os.environ.get("TRISPARK_REQUIRE_DOCKER") == "1"
        (pytest.fail if required else pytest.skip)(f"no Docker Engine: {problem}")


def test_the_overlay_takes_the_place_of_the_file_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes((ROOT / "Dockerfiles/canary/Dockerfile").read_bytes())
    tree = tmp_path / "tree/sglang-f80c91a4b"
    for name, text in {OVERLAY: "old\n", "sglang/__init__.py": "kept\n"}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    overlay = tmp_path / "file/sm120-mla-overlay/flash_mla_sm120.py"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("new\n")
    image = docker("build", "--quiet", "--network", "none", "--target", "sources", str(tmp_path)).decode().strip()
    try:
        container = docker("create", "--network", "none", image, "/nothing").decode().strip()
        try:
            with tarfile.open(fileobj=io.BytesIO(docker("export", container))) as archive:
                files = {
                    member.name.removeprefix("python/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                    for member in archive
                    if member.isfile() and member.name.startswith("python/")
                }
        finally:
            docker("rm", container)
    finally:
        docker("rmi", image)
    assert files == {OVERLAY: "new\n", "sglang/__init__.py": "kept\n"}

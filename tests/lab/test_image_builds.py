"""The lab's images are those that their sources make, wherever and whenever they are built."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.images.declaration import load_declaration
from trispark.images.push import Request, push
from trispark.images.registry import Registry
from trispark.images.registry_address import place_of
from trispark.lab.layout import PUSH_REGISTRY
from trispark.lab.registry import digest_of

pytestmark = pytest.mark.lab


def digests(root: Path, *words: str, **environment: str) -> dict[str, Any]:
    """{image: what `images build --json` says of it}; where the registry has one, it has the same."""
    done = subprocess.run(
        [str(root / ".venv" / "bin" / "python"), "-m", "trispark", "images", "build", *words, "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {each["name"]: each for each in json.loads(done.stdout.splitlines()[-1])["images"]}


def test_a_build_without_a_cache_gives_the_digests_that_the_nodes_run(lab: Any) -> None:
    """Every step again, minutes or days after the first build."""
    built = digests(lab.root, "lab-engine", "lab-engine-canary", "bench", "--no-cache")
    site = yaml.safe_load((lab.root / "inventory/lab/group_vars/all/images.yml").read_text())
    pinned = {
        "lab-engine": site["site_engine_image"],
        "lab-engine-canary": site["site_engine_images"]["canary"],
        "bench": site["site_bench_image"],
    }
    for name, reference in pinned.items():
        assert reference.endswith(f"@{built[name]['digest']}"), name
        assert built[name]["registry"] == built[name]["digest"], name
    assert built["lab-engine"]["digest"] != built["lab-engine-canary"]["digest"]
    left = subprocess.run(
        ["docker", "images", "--format", "{{.Tag}}"], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert [tag for tag in left if tag.endswith("-again")] == [], "what was built to look at it is gone"


def copy_sources(root: Path, target: Path) -> None:
    """What git has and what it would take, as it lies here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


@pytest.mark.slow
def test_a_copy_in_another_directory_builds_the_same_from_nothing(lab: Any, tmp_path: Path) -> None:
    """With packages and root file systems of its own, as on another machine."""
    here = digests(lab.root)
    clone = tmp_path / "elsewhere" / "clone"
    copy_sources(lab.root, clone)
    (clone / ".venv").symlink_to((lab.root / ".venv").resolve())
    try:
        there = digests(clone, "--no-cache")
        assert {name: each["digest"] for name, each in there.items()} == {
            name: each["digest"] for name, each in here.items()
        }
        assert {name: each["config"] for name, each in there.items()} == {
            name: each["config"] for name, each in here.items()
        }
    finally:
        label = subprocess.run(
            [
                str(clone / ".venv/bin/python"),
                "-c",
                "import sys; from pathlib import Path; from trispark.lab.layout import LABEL_ROOT, root_id; "
                "print(f'{LABEL_ROOT}={root_id(Path(sys.argv[1]))}')",
                str(clone),
            ],
            env={**os.environ, "PYTHONPATH": str(clone / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        made = subprocess.run(
            ["docker", "images", "--quiet", "--filter", f"label={label}"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.split()  # fmt: skip
        subprocess.run(["docker", "rmi", "--force", *sorted(set(made))], capture_output=True, timeout=300, check=False)
        shutil.rmtree(clone)


def test_an_archive_of_another_builder_reaches_the_labs_registry(lab: Any, tmp_path: Path) -> None:
    """The registry is the real one; the archive is buildah's own (tests/unit/images/foreign)."""
    shutil.copytree(lab.root / "tests/unit/images/foreign", tmp_path, dirs_exist_ok=True)
    (tmp_path / "experiments").symlink_to(lab.root / "experiments")
    said: list[str] = []
    to = place_of(f"{PUSH_REGISTRY}/trispark/test-of-push")
    request = Request("tiny", tmp_path / "context", tmp_path / "buildah.oci.tar", to)
    for _ in range(2):
        said.clear()
        made = push(tmp_path, load_declaration(tmp_path), request, said.append, lambda place: Registry(place.address))
        assert digest_of(f"{to.reference}:{made.tag}", PUSH_REGISTRY) == made.digest
    assert [line for line in said if line.startswith("blob ") and not line.endswith("there already")] == []
    held = Registry(PUSH_REGISTRY).manifest(to.path, made.digest)
    assert held is not None
    assert f"sha256:{hashlib.sha256(held).hexdigest()}" == made.digest

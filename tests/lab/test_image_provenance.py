"""A site that demands signed provenance boots what is signed, refuses what is not, and always finds the way back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SIGNER = "builder@lab.example"


def images(lab: Any, *words: str) -> None:
    argv = [sys.executable, "-m", "trispark", "images", *words]
    done = subprocess.run(
        argv,
        cwd=lab.root,
        env={**os.environ, "PYTHONPATH": str(lab.root / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def digest_of_engine(lab: Any) -> str:
    site = yaml.safe_load((lab.root / "inventory/lab/group_vars/all/images.yml").read_text())
    return str(site["site_engine_image"]).partition("@")[2]


@pytest.fixture
def demanding(serving: Any, tmp_path: Path) -> Iterator[Any]:
    """The lab's site demands a signature of a key made for this test; what the engine's image has is signed with it."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], timeout=60, check=True)
    inventory = serving.root / "inventory" / "lab"
    signers, variables = inventory / "test_signers", inventory / "group_vars" / "all" / "test_signers.yml"
    signers.write_text(f'{SIGNER} namespaces="trispark-image@v1" {key.with_suffix(".pub").read_text()}')
    variables.write_text("site_image_signers: test_signers\n")
    try:
        images(serving, "build", "lab-engine", "bench")
        images(serving, "attest", "lab-engine", "bench", "--key", str(key))
        yield serving
    finally:
        variables.unlink()
        signers.unlink()


def test_what_is_signed_boots_what_is_not_is_refused_and_a_rollback_asks_for_nothing(demanding: Any) -> None:
    lab = demanding
    digest = digest_of_engine(lab)
    booted = lab.play("boot")
    assert booted.rc == 0, booted.output[-4000:]
    boot = lab.inspect("spark0")["Config"]["Labels"]["trispark.boot"]
    record = json.loads(lab.node("spark0", "sh", "-c", f"cat /var/lib/trispark/records/*-{boot}.json"))
    (fact,) = [each for each in record["provenance"] if each["image"].endswith(digest)]
    assert fact["signer"] == SIGNER
    for name in lab.nodes:
        place = f"/var/lib/trispark/provenance/{digest.removeprefix('sha256:')}"
        kept = lab.node(name, "sh", "-c", f"cat {place}/*/statement.json")
        assert hashlib.sha256(kept).hexdigest() == fact["statement_sha256"]
        subject = {each["digest"]["sha256"] for each in json.loads(kept)["subject"]}
        assert digest.removeprefix("sha256:") in subject

    statement = lab.root / ".trispark" / "provenance" / digest.removeprefix("sha256:") / "statement.json"
    signed = statement.read_bytes()
    statement.write_bytes(signed.replace(b"lab-engine", b"lab-3ngine", 1))
    try:
        refused = lab.play("boot")
        assert refused.rc != 0
        assert "TS-PROVENANCE-" in refused.output, refused.output[-2000:]
        assert lab.inspect("spark0")["Config"]["Labels"]["trispark.boot"] == boot, "nothing was touched"
        back = lab.play("rollback")
        assert back.rc == 0, back.output[-4000:]
        assert lab.inspect("spark0")["Config"]["Labels"]["trispark.boot"] != boot
    finally:
        statement.write_bytes(signed)

"""`images attest` and `images provenance`: what they print, write and refuse, with real keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from built_images import BUILT, allow, built, make_key, write_root
from typer.testing import CliRunner

from trispark.cli import images_provenance
from trispark.cli.app import app
from trispark.errors import TrisparkError
from trispark.images.built import DIRECTORY, write_built

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A checkout with one site, the lab, and one built image."""
    repo = tmp_path / "repo"
    shutil.copytree(ROOT / "inventory" / "lab", repo / "inventory" / "lab")
    write_built(repo / DIRECTORY / "lab-engine.json", BUILT, [write_root(repo / "root")])
    monkeypatch.setattr(images_provenance, "REPO", repo)
    return repo


def run(*arguments):
    result = CliRunner().invoke(app, ["images", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def last(result):
    return json.loads(result.stdout.splitlines()[-1])


def configure(repo, **values):
    text = "".join(f"site_image_{name}: {value}\n" for name, value in values.items())
    (repo / "inventory/lab/group_vars/all/provenance.yml").write_text(text)


def test_attested_signed_shown_and_verified(repo, tmp_path):
    key = make_key(tmp_path, "builder")
    allow(repo / "inventory/lab/signers", ("builder@example", key, ""))
    configure(repo, key=key, signers="signers")
    (attested,) = last(run("attest", "lab-engine", "--json"))["attested"]
    assert sorted(path.name for path in Path(attested["directory"]).iterdir()) == [
        "sbom.cdx.json",
        "statement.json",
        "statement.json.sig",
    ]
    shown = run("provenance", BUILT.manifest_digest)
    assert "signature  there, not verified" in shown.stdout
    verified = run("provenance", BUILT.manifest_digest[:20], "--verify", "--json")
    assert "signature  of builder@example, ED25519 key SHA256:" in verified.stdout
    assert last(verified)["provenance"]["fact"]["statement_sha256"] == attested["statement_sha256"]


def test_without_a_key_it_is_not_signed_and_that_is_said(repo, tmp_path):
    said = run("attest", "lab-engine")
    assert "not signed: no key is configured" in said.stdout
    key = make_key(tmp_path, "builder")
    allow(repo / "inventory/lab/signers", ("builder@example", key, ""))
    configure(repo, signers="signers")
    for arguments, error_id in (
        (("provenance", "a" * 64, "--verify"), "TS-PROVENANCE-UNSIGNED"),
        (("provenance", "b" * 64), "TS-PROVENANCE-NONE"),
        (("attest", "../lab-engine"), "TS-PROVENANCE-BUILT"),
        (("attest", "bench"), "TS-PROVENANCE-BUILT"),
        (("attest", "lab-engine", "--key", str(tmp_path / "none")), "TS-PROVENANCE-KEY"),
    ):
        with pytest.raises(TrisparkError) as caught:
            run(*arguments)
        assert caught.value.id == error_id
    assert run("attest", "lab-engine", "--key", str(key)).exit_code == 0
    assert run("provenance", "a" * 64, "--verify").exit_code == 0


def test_without_its_key_an_image_stays_signed_until_its_statement_changes(repo, tmp_path):
    key = make_key(tmp_path, "builder")
    allow(repo / "inventory/lab/signers", ("builder@example", key, ""))
    configure(repo, signers="signers")
    signed = last(run("attest", "lab-engine", "--key", str(key), "--json"))
    again = run("attest", "lab-engine", "--json")
    assert "signed before, by ED25519 key SHA256:" in again.stdout
    assert last(again) == signed
    assert run("provenance", "a" * 64, "--verify").exit_code == 0
    write_built(repo / DIRECTORY / "lab-engine.json", built(commit=None), [repo / "root"])
    changed = run("attest", "lab-engine")
    assert "not signed: no key is configured; the signature from before was not of this statement" in changed.stdout
    with pytest.raises(TrisparkError, match="TS-PROVENANCE-UNSIGNED"):
        run("provenance", "a" * 64, "--verify")


def test_a_site_without_signers_verifies_nothing(repo):
    run("attest", "lab-engine")
    assert run("provenance", "a" * 64).exit_code == 0
    with pytest.raises(TrisparkError, match="TS-PROVENANCE-SIGNERS"):
        run("provenance", "a" * 64, "--verify")


def test_a_signature_of_the_past_is_judged_by_its_time(repo, tmp_path):
    key = make_key(tmp_path, "builder")
    allow(repo / "inventory/lab/signers", ("builder@example", key, 'valid-before="20200101"'))
    configure(repo, key=key, signers="signers")
    run("attest", "lab-engine")
    with pytest.raises(TrisparkError, match="TS-PROVENANCE-EXPIRED"):
        run("provenance", "a" * 64, "--verify")
    assert run("provenance", "a" * 64, "--verify", "--at", "2019-06-01").exit_code == 0

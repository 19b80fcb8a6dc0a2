"""From the lock to a signed image: context, archive, push, attest and provenance, with a real ssh-keygen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from built_images import allow, make_key
from file_index import FileIndex
from file_index import serving as index_serving
from image_project import WHEEL, Project
from oci_archives import OciImage, files_of, labels_of, write
from served_registry import serving
from typer.testing import CliRunner, Result

from trispark.cli import exit_codes, images_context, images_provenance, images_push
from trispark.cli.app import app
from trispark.errors import TrisparkError
from trispark.images.context_file import read_context

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean git checkout with one image, the lab's inventory, and what the lock names in the cache."""
    root = tmp_path / "repo"
    root.mkdir()
    with index_serving(FileIndex()) as index:
        index.wheel("tiny-kernel", WHEEL, b"tiny")
        project = Project(root, index)
        project.lock(*project.inputs)
        project.make("../warm")
    shutil.copytree(ROOT / "inventory" / "lab", root / "inventory" / "lab")
    key = make_key(tmp_path, "builder")
    allow(root / "inventory/lab/signers", ("builder@example", key, ""))
    site = f"site_image_key: {key}\nsite_image_signers: signers\n"
    (root / "inventory/lab/group_vars/all/provenance.yml").write_text(site)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "x"]):
        if command[0] == "add":
            (root / ".git/info/exclude").write_text(".trispark\n")
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    for module in (images_context, images_push, images_provenance):
        monkeypatch.setattr(module, "REPO", root)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))
    return root


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["images", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def last(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("gzipped", [(), (0, 1)])
def test_from_the_lock_to_a_verified_image(repo: Path, tmp_path: Path, gzipped: tuple[int, ...]) -> None:
    folder, archive = tmp_path / "context", tmp_path / "canary-arm64.oci.tar"
    shutil.copytree(repo / "inventory/lab", repo / "inventory/fleet")  # a site of one's own, in no commit
    made = run("context", "canary", "--arch", "arm64", "--out", str(folder), "--offline", "--json")
    assert last(made)["archive"] == str(archive), "where the printed command writes it"
    assert f"images push canary --context {folder} --archive {archive}" in made.stdout
    file = read_context(folder).file
    write(archive, files_of(OciImage(labels_of(file), gzipped=gzipped)))

    with serving() as registry:
        to = f"{registry.address}/fleet/canary"
        pushed = run("push", "canary", "--context", str(folder), "--archive", str(archive), "--to", to, "--json")
        held = dict(registry.manifests)
    said = last(pushed)
    digest = str(said["digest"])
    assert (said["pushed"], said["repository"], list(held)) == (True, to, [said["tag"]])
    assert f"  site_engine_image: {to}@{digest}" in pushed.stdout.splitlines()

    run("attest", "canary")
    shown = last(run("provenance", digest, "--verify", "--json"))["provenance"]
    assert isinstance(shown, dict)
    assert (shown["verified"], shown["fact"]["signer"]) == (True, "builder@example")
    place = repo / ".trispark/provenance" / digest.removeprefix("sha256:")
    statement = json.loads((place / "statement.json").read_text())
    named = {
        (each["annotations"]["role"], each["name"]): each["digest"]
        for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    head = subprocess.run(["git", "-C", str(repo), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert named["source", "source"] == {"gitCommit": head.stdout.strip()}
    assert named["base", "r.example/a"] == {"sha256": "d" * 64}
    assert named["lock", "sglang-f80c91a4b"] == {"sha256": file.locked[1].sha256}
    bill = json.loads((place / "sbom.cdx.json").read_text())
    parts = {each["bom-ref"]: each for each in bill["components"]}
    assert "deb:libc6:arm64@2.36" in parts
    assert not any("gone" in each for each in parts), "the upper layer removes it"
    wheel = parts["pypi:tiny-kernel@1.2#opt/tiny_kernel-1.2.dist-info"]
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": file.locked[0].sha256}]


def test_an_archive_that_is_another_one_by_now_is_not_attested(repo: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "context", tmp_path / "e.tar"
    run("context", "canary", "--out", str(folder), "--offline")
    image = OciImage(labels_of(read_context(folder).file))
    files = files_of(image)
    write(archive, files)
    run("push", "canary", "--context", str(folder), "--archive", str(archive))
    name = next(name for name, data in files.items() if data == image.layers[0])
    write(archive, {**files, name: files[name].replace(b"libc6", b"libc7")})
    with pytest.raises(TrisparkError, match="TS-IMAGES-ARCHIVE"):
        run("attest", "canary")
    archive.unlink()
    with pytest.raises(TrisparkError, match="TS-IMAGES-ARCHIVE"):
        run("attest", "canary")
    assert not (repo / ".trispark/provenance").exists()


def test_without_a_registry_the_way_over_the_nodes_is_named(repo: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "context", tmp_path / "e.tar"
    run("context", "canary", "--out", str(folder), "--offline")
    image = OciImage(labels_of(read_context(folder).file))
    write(archive, files_of(image))
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        said = run("push", "canary", "--context", "context", "--archive", "e.tar", "--json")
    finally:
        os.chdir(here)
    assert f"site_engine_image: 127.0.0.1:PORT/canary@{image.digest}" in said.stdout
    assert (last(said)["pushed"], last(said)["tag"]) == (False, None)
    run("attest", "canary")
    assert last(run("provenance", image.digest, "--verify", "--json"))


@pytest.mark.parametrize(
    ("arguments", "id", "status"),
    [
        (("engine-x",), "TS-IMAGES-NAME", exit_codes.USAGE),
        (("canary", "--to", "engine"), "TS-IMAGES-REPOSITORY", exit_codes.USAGE),
        (("canary",), "TS-IMAGES-CONTEXT", exit_codes.REFUSED),
    ],
)
def test_what_cannot_be_pushed_is_refused(
    repo: Path, tmp_path: Path, arguments: tuple[str, ...], id: str, status: int
) -> None:
    with pytest.raises(TrisparkError) as caught:
        run("push", *arguments, "--context", str(tmp_path / "none"), "--archive", str(tmp_path / "none.tar"))
    assert (caught.value.id, exit_codes.of_error(caught.value)) == (id, status)

"""Build contexts: only what is known by hash, the same bytes each time; and what the image's own check finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from file_index import FileIndex, serving
from image_project import DIGEST, HTTP, WHEEL, Project
from typer.testing import CliRunner

from trispark.cli import exit_codes, images_context
from trispark.cli.app import app
from trispark.errors import TrisparkError
from trispark.images.context_file import read_context
from trispark.images.declaration import load_declaration
from trispark.images.lock_update import update
from trispark.images.package_index import PackageIndex
from trispark.site import load_site
from trispark.site_check import check_site

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "src/trispark/images/image_check.py"


@pytest.fixture
def index() -> Iterator[FileIndex]:
    with serving(FileIndex()) as served:
        served.wheel("tiny-kernel", WHEEL, b"tiny")
        yield served


@pytest.fixture
def project(tmp_path: Path, index: FileIndex) -> Project:
    made = Project(tmp_path, index)
    made.lock(*made.inputs)
    return made


def test_a_context_has_what_was_locked_and_nothing_else(project: Project) -> None:
    made = project.make("out")
    files = {path.relative_to(made.folder).as_posix() for path in made.folder.rglob("*") if path.is_file()}
    assert files == {
        *("Dockerfile", "build.json", "image_check.json", "image_check.py", "requirements.txt", f"wheels/{WHEEL}"),
        *("tree/sglang-f80c91a4b/sglang/__init__.py", "tree/sglang-f80c91a4b/overlay.py"),
        "file/sm120-mla-overlay/flash_mla_sm120.py",
    }
    sha256 = hashlib.sha256(b"tiny").hexdigest()
    assert (made.folder / "requirements.txt").read_text() == f"tiny-kernel==1.2 --hash=sha256:{sha256}\n"
    assert "--network" in made.command
    assert made.command[made.command.index("--network") + 1] == "none"
    assert f"BASE=r.example/a@{DIGEST}" in made.command
    assert "TITLE=a 'title' with quotes" in made.command
    assert "ENGINE_SOURCE=/s" in made.command
    assert json.loads((made.folder / "build.json").read_text())["context"]["inputs"] == made.inputs
    expected = json.loads((made.folder / "image_check.json").read_text())
    assert expected["modules"] == ["sglang"]
    assert "DSV41_CACHE_GIB" in expected["variables"]


def test_two_contexts_are_the_same_to_the_byte_and_second(project: Project, tmp_path: Path) -> None:
    first, second = project.make("one"), project.make("elsewhere/two")
    assert first.hash == second.hash

    def seen(folder: Path) -> list[tuple[str, int, int]]:
        every = [folder, *sorted(folder.rglob("*"))]
        return [(str(p.relative_to(folder)), p.stat().st_mode, p.stat().st_mtime_ns) for p in every if p != folder]

    assert seen(first.folder) == seen(second.folder)
    (project.root / "given/sglang/__init__.py").write_text("y = 1\n")
    project.lock("sglang-f80c91a4b")
    assert project.make("three").hash != first.hash


@pytest.mark.parametrize("name", ["base", "kernel", "sglang-f80c91a4b", "sm120-mla-overlay"])
def test_what_has_no_hash_is_refused_by_name(project: Project, name: str) -> None:
    project.inputs[name]["unresolved"] = "nobody knows"
    if name == "base":
        del project.inputs[name]["digest"]
    if name == "kernel":
        project.inputs[name]["version"] = "9"
    project.declare()
    from trispark.images.lock_check import Sources
    from trispark.images.system_packages import SystemPackages

    pip = PackageIndex(project.index.address, HTTP)
    update(
        project.root,
        load_declaration(project.root),
        name,
        Sources(project.root, project.cache, SystemPackages(), pip, None),
    )
    with pytest.raises(TrisparkError) as caught:
        project.make("out")
    assert caught.value.id == "TS-IMAGES-UNRESOLVED"
    assert f"{name}: nobody knows" in caught.value.observed
    assert not (project.root / "out").exists()


def test_what_is_not_available_is_refused_with_its_reason(project: Project) -> None:
    project.variant |= {"available": False, "reason": "it was never tried"}
    project.declare()
    with pytest.raises(TrisparkError) as caught:
        project.make("out")
    assert (caught.value.id, caught.value.observed) == ("TS-IMAGES-UNRESOLVED", "it was never tried")


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [("canary", "amd64", "--arch arm64 alone"), ("other", "arm64", "one of canary")],
)
def test_an_image_that_is_not_there_is_refused(project: Project, name: str, architecture: str, expected: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        project.make("out", name=name, architecture=architecture)
    assert (caught.value.id, caught.value.expected) == ("TS-IMAGES-NAME", expected)


def test_a_folder_with_something_in_it_is_left_alone(project: Project) -> None:
    (project.root / "out").mkdir()
    project.make("out")
    before = sorted(path.name for path in (project.root / "out").iterdir())
    with pytest.raises(TrisparkError) as caught:
        project.make("out")
    assert caught.value.id == "TS-IMAGES-OUT"
    assert sorted(path.name for path in (project.root / "out").iterdir()) == before


@pytest.mark.parametrize(
    ("spoil", "id"),
    [
        (lambda given: (given / "sm120-mla-overlay").write_text("x = 2\n"), "TS-IMAGES-HASH"),
        (lambda given: (given / "sm120-mla-overlay").unlink(), "TS-IMAGES-COPY"),
        (lambda given: (given / "sglang-f80c91a4b/overlay.py").unlink(), "TS-IMAGES-HASH"),
    ],
)
def test_another_copy_ends_it_and_leaves_nothing(project: Project, spoil: Any, id: str) -> None:
    spoil(project.cache.folder / "given")
    with pytest.raises(TrisparkError) as caught:
        project.make("sub/out")
    assert caught.value.id == id
    assert list((project.root / "sub").iterdir()) == []


def test_without_network_a_wheel_must_be_kept_here(project: Project) -> None:
    with pytest.raises(TrisparkError) as caught:
        project.make("out", fetch=False)
    assert caught.value.id == "TS-IMAGES-COPY"
    project.make("one")
    project.make("two", fetch=False)


def test_a_dockerfile_that_breaks_a_rule_is_not_used(project: Project) -> None:
    path = project.root / "Dockerfiles/canary/Dockerfile"
    path.write_text(path.read_text() + "ENV DSV41_CACHE_GIB=16\n")
    with pytest.raises(TrisparkError) as caught:
        project.make("out")
    assert caught.value.id == "TS-IMAGES-LINT"
    assert "DSV41_CACHE_GIB" in caught.value.observed


def test_the_site_gives_arguments_but_no_base(project: Project) -> None:
    made = project.make("out", arguments={"PYTHON": "/other/python3"})
    assert "PYTHON=/other/python3" in made.command
    for name in ("BASE", "BASE_DIGEST", "NO_SUCH_ARG"):
        with pytest.raises(TrisparkError) as caught:
            project.make("two", arguments={name: "debian:12"})
        assert caught.value.id == "TS-IMAGES-ARGUMENT"


SECRET = "n0tAKeyOfAnybody"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("PIP_PASSWORD", SECRET),
        ("API_KEY", ""),
        ("PYTHON", "hf_" + SECRET),
        ("PYTHON", f"https://me:{SECRET}@index.example/simple"),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_no_secret_becomes_an_argument_of_a_build(project: Project, name: str, value: str, declared: bool) -> None:
    """It would lie in build.json, in the statement and in the history of the image."""
    if declared:
        project.image["arguments"] = {"ENGINE_SOURCE": "/s", name: value or "y"}
        project.declare()
    with pytest.raises(TrisparkError) as caught:
        project.make("out", **({} if declared else {"arguments": {name: value}}))
    assert caught.value.id == "TS-IMAGES-SECRET"
    assert name in caught.value.observed
    assert SECRET not in str(caught.value)
    assert not (project.root / "out").exists()
    assert list(project.root.rglob("build.json")) == []


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The example site, where its arguments are changed."""
    for name in ("experiments", "Dockerfiles"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in (ROOT / "inventory/sparks").rglob("*.yml"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def site_lines(root: Path, dockerfile: str, arguments: str) -> list[str]:
    path = root / "inventory/sparks/group_vars/all/site.yml"
    text = (ROOT / path.relative_to(root)).read_text()
    text = text.replace("site_build_dockerfile: null", f"site_build_dockerfile: {dockerfile}")
    path.write_text(text.replace("site_build_args: {}", f"site_build_args: {arguments}"))
    return [str(each) for each in check_site(root, "sparks").problems if "BUILD" in str(each) or "build" in str(each)]


@pytest.mark.parametrize(
    ("dockerfile", "arguments", "id"),
    [
        ("engine/Dockerfile", "{PYTHON: /opt/x/bin/python3}", None),
        ("engine/Dockerfile", "{}", None),
        ("null", "{}", None),
        ("engine/Dockerfile", "{BASE: 'debian:12'}", "TS-SITE-BUILDARGS"),
        ("engine/Dockerfile", "{OTHER: x}", "TS-SITE-BUILDARGS"),
        ("null", "{PYTHON: x}", "TS-SITE-BUILDARGS"),
        ("engine/Dockerfile", "{python: x}", "TS-SITE-SCHEMA"),
        ("engine/Dockerfile", '{PYTHON: "a\\nb"}', "TS-SITE-SCHEMA"),
        ("engine/Dockerfile", "{PYTHON: 1}", "TS-SITE-SCHEMA"),
        ("engine/Dockerfile", "{PYTHON: hf_n0tAKeyOfAnybody}", "TS-IMAGES-SECRET"),
        ("no/Dockerfile", "{PYTHON: hf_n0tAKeyOfAnybody}", "TS-IMAGES-SECRET"),
    ],
)
def test_arguments_of_a_site_fit_its_dockerfile(fleet: Path, dockerfile: str, arguments: str, id: str | None) -> None:
    lines = site_lines(fleet, dockerfile, arguments)
    missing = ["TS-SITE-DOCKERFILE"] if dockerfile.startswith("no/") else []
    assert [line.split(":")[0] for line in lines] == ([] if id is None else [id]) + missing, lines


def test_a_site_reads_them() -> None:
    assert load_site(ROOT / "inventory/sparks", "optional").build_args == {}


def test_what_a_site_says_of_its_engine_reaches_no_other_image(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "inventory/sparks", project.root / "inventory/sparks")
    settings = project.root / "inventory/sparks/group_vars/all/site.yml"
    text = settings.read_text().replace("site_build_dockerfile: null", "site_build_dockerfile: own/Dockerfile")
    settings.write_text(text.replace("site_build_args: {}", "site_build_args: {PYTHON: /site/python3}"))
    (project.root / "Dockerfiles/own").mkdir()
    declared = (project.root / "Dockerfiles/canary/Dockerfile").read_text()
    (project.root / "Dockerfiles/own/Dockerfile").write_text(f"# of the site\n{declared}")
    path = project.root / "Dockerfiles/images.yml"
    data = yaml.safe_load(path.read_text())
    data["images"]["bench"] = {key: value for key, value in data["images"]["canary"].items() if key != "serves"}
    path.write_text(json.dumps(data))  # JSON is YAML, and has no aliases
    (project.root / "src/trispark_bench").mkdir()
    monkeypatch.setattr(images_context, "REPO", project.root)
    project.make("warm")
    made = {}
    for name, arguments in (("bench", ["--site", "sparks"]), ("canary", ["--site", "sparks"]), ("canary", [])):
        out = project.root / f"out-{name}-{len(arguments)}"
        status, said = run("context", name, "--out", str(out), "--offline", *arguments)
        assert status == 0, said
        given = read_context(out).file.arguments["PYTHON"]
        made[out.name] = ((out / "Dockerfile").read_text() == declared, given, "are of its engine, not of this" in said)
    assert made == {
        "out-bench-2": (True, "/p/python3", True),
        "out-canary-2": (False, "/site/python3", False),
        "out-canary-0": (True, "/p/python3", False),
    }


def run(*argv: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["images", *argv])
    return done.exit_code, done.output


def refusal(*argv: str) -> TrisparkError:
    done = CliRunner().invoke(app, ["images", *argv])
    assert isinstance(done.exception, TrisparkError), done.output
    return done.exception


def test_the_shipped_engine_has_a_context_and_the_canary_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, text = run("context", "engine-dev-dsv41-2", "--out", str(out), "--offline", "--json")
    assert status == 0, text
    answer = json.loads(text.splitlines()[-1])
    assert answer["inputs"]["dev-dsv41-2-arm64"].endswith(
        "@sha256:b4a4745fab5393dc0aca573fe754b86477f57691c9e971390b21102d3d94ebf9"
    )
    assert sorted(path.name for path in out.iterdir()) == [
        *("Dockerfile", "build.json", "image_check.json", "image_check.py")
    ]
    for name, missing in {
        "canary": ("sglang-f80c91a4b", "sm120-mla-overlay"),
        "engine-dev-dsv41-1": ("dev-dsv41-1-arm64",),
        "release-0.5.21": ("cuda-arm64", "deb-libnuma1-arm64", "release-0.5.21-arm64"),
    }.items():
        error = refusal("context", name, "--out", str(tmp_path / "no"), "--offline")
        assert error.id == "TS-IMAGES-UNRESOLVED"
        assert exit_codes.of_error(error) == exit_codes.REFUSED
        assert all(f"{each}: " in error.observed for each in missing)
    assert not (tmp_path / "no").exists()


def test_a_context_of_a_site_and_of_the_lab(tmp_path: Path) -> None:
    argv = ("context", "engine-dev-dsv41-2", "--out", str(tmp_path / "out"), "--offline", "--site", "sparks")
    assert run(*argv)[0] == 0
    assert refusal(*argv[:-1], "nowhere").id == "TS-SITE-UNKNOWN"
    assert refusal("context", "lab-engine", "--out", str(tmp_path / "lab")).id == "TS-IMAGES-NAME"


def test_the_load_client_of_a_fleet_is_made_on_the_base_of_the_engine(tmp_path: Path) -> None:
    assert run("context", "bench", "--out", str(tmp_path / "out"), "--offline")[0] == 0
    assert (tmp_path / "out/trispark_bench/__main__.py").is_file()
    assert not list((tmp_path / "out").rglob("__pycache__"))


def test_the_shipped_dockerfiles_pass_the_verb() -> None:
    status, text = run("lint", "--json")
    assert status == 0
    assert json.loads(text.splitlines()[-1])["ok"] is True


class TestImageCheck:
    """The check that runs inside an image, run as a build runs it."""

    @staticmethod
    def run(tmp_path: Path, expected: dict[str, Any], **environment: str) -> tuple[int, str, Path]:
        source, target = tmp_path / "expected.json", tmp_path / "result.json"
        source.write_text(json.dumps(expected))
        given = {"PATH": os.environ["PATH"], **environment}
        argv = [sys.executable, "-B", str(CHECK), str(source), str(target)]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
        return done.returncode, done.stderr, target

    EXPECTED: dict[str, Any] = {  # noqa: RUF012
        "variables": ["DSV41_CACHE_GIB", "PYTHONPATH"],
        "prefixes": ["NCCL_", "DSV41_"],
        "says_itself": ["NCCL_VERSION"],
        "absent": ["/etc/no-such-nccl.conf"],
        "not_importable": ["trispark_hooks"],
        "modules": ["json", "email.message"],
        "packages": {"pytest": pytest.__version__},
    }

    def test_an_image_as_it_should_be(self, tmp_path: Path) -> None:
        code, text, target = self.run(tmp_path, self.EXPECTED, NCCL_VERSION="2.30")
        assert (code, text) == (0, "")
        assert json.loads(target.read_text())["modules"] == ["json", "email.message"]

    @pytest.mark.parametrize(
        ("expected", "environment", "text"),
        [
            ({}, {"DSV41_CACHE_GIB": "16"}, "the image sets DSV41_CACHE_GIB=16"),
            ({}, {"DSV41_CACHE_GIB": ""}, "DSV41_CACHE_GIB"),
            ({}, {"NCCL_PROTO": "LL"}, "NCCL_PROTO"),
            ({}, {"PYTHONPATH": "/x"}, "PYTHONPATH"),
            ({"absent": ["/"]}, {}, "/ is there"),
            ({"not_importable": ["json"]}, {}, "the image holds json"),
            ({"packages": {"pytest": "0.1"}}, {}, "0.1 is wanted"),
            ({"packages": {"no-such-thing": "1"}}, {}, "not installed"),
            ({"modules": ["no_such_module"]}, {}, "cannot be imported: ModuleNotFoundError"),
        ],
    )
    def test_each_finding_ends_the_build(
        self, tmp_path: Path, expected: dict[str, Any], environment: dict[str, str], text: str
    ) -> None:
        code, said, target = self.run(tmp_path, self.EXPECTED | expected, **environment)
        assert code == 1
        assert text in said
        assert not target.exists()

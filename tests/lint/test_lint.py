"""The linters of the house, as tests: each must find nothing in the whole tree."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent

# A package that is not there yet would make mypy pass over nothing: each of these must exist.
TYPED = [
    *("src/trispark", "src/trispark_node", "src/trispark_bench", "lab/trispark_lab"),
    *("adapters/engram_store", "adapters/trispark_hooks", "adapters/trispark_adapters"),
]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}", "NO_COLOR": "1"}
    environment["ANSIBLE_CONFIG"] = str(REPO / "ansible.cfg")
    return subprocess.run(
        argv, cwd=REPO, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def shell_scripts() -> list[str]:
    """Tracked and new files that are shell by name or first line; git leaves out what is ignored."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    assert listed.returncode == 0, listed.stderr
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = REPO / name
        if not path.is_file():
            continue
        with path.open("rb") as file:
            first = file.readline(200)
        if name.endswith(".sh") or (first.startswith(b"#!") and first.rstrip().endswith((b"/sh", b"bash", b"dash"))):
            found.append(name)
    return found


def module_files() -> list[str]:
    """Ansible loads plugins as single files, so mypy is given each by itself."""
    return sorted(str(path.relative_to(REPO)) for path in (REPO / "plugins").rglob("*.py"))


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["ruff", "check", "."], id="ruff-check"),
        pytest.param(["ruff", "format", "--check", "."], id="ruff-format"),
        pytest.param(["mypy", "--strict", *TYPED], id="mypy"),
        pytest.param(["yamllint", "--strict", "."], id="yamllint"),
        pytest.param(
            ["ansible-lint", "-c", ".config/ansible-lint.yml", "--offline", "--nocolor", "--format=pep8"],
            id="ansible-lint",
        ),
    ],
)
def test_linter_finds_nothing(argv: list[str]) -> None:
    done = run(str(TOOLS / argv[0]), *argv[1:])
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


def test_plugins_are_typed() -> None:
    files = module_files()
    assert files
    done = run(str(TOOLS / "mypy"), "--strict", *files)
    assert done.returncode == 0, done.stdout[-6000:]


def test_shell_scripts_pass_shellcheck() -> None:
    scripts = shell_scripts()
    assert {"trispark", "requirements/compile", ".ci/run"} <= set(scripts)
    # Debian's package, which `./trispark test` installs: no wheel of it exists for aarch64.
    tool = shutil.which("shellcheck")
    assert tool, "shellcheck is missing: apt-get install shellcheck, or run ./trispark test"
    done = run(tool, *scripts)
    assert done.returncode == 0, done.stdout


def sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None)
    assert parser.read(path) == [str(path)]
    return {name: dict(parser[name]) for name in parser.sections()}


def one_directory_up(value: str) -> str:
    """What a value of the root's ansible.cfg must be below playbooks/."""
    parts = value.split(":")
    return ":".join(f"../{part}" if (REPO / part).exists() and not Path(part).is_absolute() else part for part in parts)


def test_both_ansible_configurations_say_the_same() -> None:
    root = sections(REPO / "ansible.cfg")
    below = sections(REPO / "playbooks" / "ansible.cfg")
    expected = {
        section: {key: one_directory_up(value) for key, value in values.items()} for section, values in root.items()
    }
    assert below == expected
    assert root["defaults"]["host_key_checking"] == "True"


@pytest.mark.parametrize("lock", sorted(path.name for path in (REPO / "requirements").glob("*.txt")))
def test_lock_has_hashes_and_names_no_index(lock: str) -> None:
    lines = (REPO / "requirements" / lock).read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    assert "://" not in text
    assert "index" not in text.replace("--hash", "")


@pytest.mark.parametrize("line", ["py311", "py312"])
def test_test_lock_holds_the_versions_of_the_run_lock(line: str) -> None:
    def pins(name: str) -> set[str]:
        text = (REPO / "requirements" / name).read_text(encoding="utf-8")
        return {part.split(" ")[0] for part in text.splitlines() if part and not part.startswith((" ", "#"))}

    assert pins(f"run-{line}.txt") <= pins(f"test-{line}.txt")

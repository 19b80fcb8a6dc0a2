"""What the locks and the playbooks promise for releases that do not run here: core 2.20 and Python 3.14."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from interpreters import ROOT, find_python, make_venv, run

LOCKS = ROOT / "requirements"


def pinned(lock: str, package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", (LOCKS / lock).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{lock} has no {package}"
    return found[1]


@pytest.mark.parametrize(("lock", "core"), [("run-py311.txt", "2.19."), ("run-py312.txt", "2.21.")])
def test_each_lock_pins_the_core_of_its_python(lock: str, core: str) -> None:
    assert pinned(lock, "ansible-core").startswith(core)


@pytest.fixture(scope="module")
def core_2_20() -> Path:
    """The programs of an environment with ansible-core 2.20, which needs Python 3.12."""
    python = find_python(["3.13", "3.12"])
    if python is None:
        pytest.skip("NOT TESTED: it needs a Python 3.12 or 3.13, and there is none on PATH or in pyenv")
    wanted = ["ansible-core>=2.20,<2.21", f"ansible-lint=={pinned('test-py312.txt', 'ansible-lint')}"]
    return make_venv(python, "core-2.20", wanted)


@pytest.mark.slow
def test_core_2_20_passes_lint_and_syntax(core_2_20: Path) -> None:
    """2.20 is between the two that run the lab. Collections are those of this environment."""
    tools = core_2_20
    assert "core 2.20." in run(str(tools / "ansible-playbook"), "--version")
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(next(Path(sys.prefix).glob("lib/python3.*/site-packages"))),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "True",
    }
    names = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("playbooks/*.yml"))
    output = run(str(tools / "ansible-playbook"), "--syntax-check", *names, **environment)
    assert "DEPRECATION WARNING" not in output
    run(str(tools / "ansible-lint"), "-c", ".config/ansible-lint.yml", "--offline", "--nocolor", **environment)


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["run-py312.txt", "test-py312.txt"])
def test_the_lock_resolves_for_python_3_14(lock: str, core_2_20: Path, tmp_path: Path) -> None:
    """Every pinned version has a wheel for it, with a hash that the lock knows; nothing is installed.

    pip compares Requires-Python with its own Python as well, so it must be one of the lock's.
    """
    report = tmp_path / "report.json"
    argv = [
        str(core_2_20 / "python"),
        "-I",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--dry-run",
    ]
    argv += ["--ignore-installed", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.14"]
    run(*argv, f"--target={tmp_path / 'none'}", f"--report={report}", f"--requirement=requirements/{lock}")
    text = (LOCKS / lock).read_text(encoding="utf-8")
    assert len(json.loads(report.read_text())["install"]) == len(re.findall(r"^[a-z0-9]\S*==", text, re.MULTILINE))

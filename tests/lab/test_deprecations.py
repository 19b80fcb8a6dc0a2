"""No playbook prints a deprecation warning, and both supported lines of ansible-core drive the lab.

`lab.play` itself refuses such a warning in any output, so every test of the lab is a test of this on this Python.
"""

from __future__ import annotations

from typing import Any

import pytest
from interpreters import find_python, make_venv, other_line, run

from trispark.host.environment import Locks

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_site_on_this_python(serving: Any) -> None:
    played = serving.play("site")
    assert played.rc == 0, played.output[-4000:]
    assert "WARNING" not in played.output, played.output


def test_the_other_line_of_ansible_core_drives_the_lab(serving: Any) -> None:
    """Stage A and a rollback by an ansible-playbook of the other Python, with its own hash lock."""
    python = find_python(other_line())
    if python is None:
        pytest.skip(f"NOT TESTED on the other ansible-core: no Python {' or '.join(other_line())} on PATH or in pyenv")
    major, minor = (int(part) for part in python.name.removeprefix("python").split("."))
    lock = Locks.of(serving.root, (major, minor)).run
    tools = make_venv(
        python,
        f"lab-{major}.{minor}",
        ["--require-hashes", "--no-deps", f"--requirement={lock.relative_to(serving.root)}"],
    )
    version = run(str(tools / "ansible-playbook"), "--version")
    assert f"core {'2.19.' if minor == 11 else '2.21.'}" in version
    print(version.splitlines()[0], f"on Python {major}.{minor}")
    for name in ("lab_up", "site", "stage_a", "rollback"):
        played = serving.play(name, tools=tools)
        assert played.rc == 0, f"{name}: {played.output[-4000:]}"

"""Builds the pytest call of `./trispark test`."""

from __future__ import annotations

import os
from pathlib import Path


def pytest_argv(python: Path, *, everything: bool, arguments: list[str]) -> list[str]:
    """pytest of ``.venv``; without ``everything`` the tests marked slow are left out."""
    argv = [str(python), "-m", "pytest", "--durations=15"]
    if not everything:
        argv += ["-m", "not slow"]
    return [*argv, *arguments]


def pytest_environment(repo: Path) -> dict[str, str]:
    """The environment in which the tests, molecule and ansible-playbook find the tools and settings of this tree."""
    environment = dict(os.environ)
    environment["PATH"] = f"{repo / '.venv' / 'bin'}:{environment.get('PATH', os.defpath)}"
    environment["ANSIBLE_CONFIG"] = str(repo / "ansible.cfg")
    environment["ANSIBLE_HOST_KEY_CHECKING"] = "True"
    # The tests name their own sites.
    environment.pop("TRISPARK_SITE", None)
    return environment

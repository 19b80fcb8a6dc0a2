"""Builds the pytest call of `./trispark test`."""

from __future__ import annotations

import os
from pathlib import Path

from trispark.errors import TrisparkError
from trispark.host import Say


def workers(cores: int) -> int:
    """Processes that run tests: also on one core two, for the tests of the lab wait most of their time."""
    return max(2, min(cores, 4))


def pytest_argv(python: Path, *, everything: bool, arguments: list[str], cores: int = 2) -> list[str]:
    """pytest of ``.venv``; without ``everything`` the tests marked slow are left out.

    tests/conftest.py says which tests stay in one process: those of the one lab, and those of one file.
    """
    argv = [str(python), "-m", "pytest", "--durations=15", "-n", str(workers(cores)), "--no-loadscope-reorder"]
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


def make_engine_environment(repo: Path, say: Say) -> bool:
    """Where the tests on the engine's own modules run; without it they are skipped, and why is said."""
    from trispark.engine_api.environment import EngineEnvironment

    try:
        EngineEnvironment(repo, say).make()
    except TrisparkError as error:
        say(f"tests on the engine's own modules are skipped: {error}")
        return False
    return True

"""The state of the project's own tree: which commit, and whether something in it was changed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError

TIMEOUT_S: Final = 10


@dataclass(frozen=True)
class ProjectState:
    """`commit` is None outside a git tree or before the first commit; such a tree counts as dirty."""

    version: str
    commit: str | None
    dirty: bool


def project_state(root: Path, version: str) -> ProjectState:
    """Asked of git, read-only. Raises TS-PROJECT-GIT when git does not answer in time."""
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return ProjectState(version, None, True)
    status = _git(root, "status", "--porcelain", "--untracked-files=normal")
    return ProjectState(version, commit.strip(), status is None or status.strip() != "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise TrisparkError(
            "TS-PROJECT-GIT", "git did not answer", where=str(root), expected=f"an answer within {TIMEOUT_S} s"
        ) from None
    return done.stdout if done.returncode == 0 else None

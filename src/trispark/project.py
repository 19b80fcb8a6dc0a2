"""The state of the project's own tree: which commit, and whether something in it was changed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

TIMEOUT_S: Final = 10.0
SITES: Final = "inventory"


@dataclass(frozen=True)
class ProjectState:
    """`commit` is None outside a git tree, before the first commit, and where git does not say; a tree counts as dirty
    unless git says that it is clean. `problem`: why git gave no answer, in one line; empty when it did."""

    version: str
    commit: str | None
    dirty: bool
    problem: str = ""

    def recorded(self) -> dict[str, Any]:
        """What a record holds of it (record_model.Project)."""
        return {"version": self.version, "commit": self.commit, "dirty": self.dirty}


def source_state(root: Path, version: str) -> ProjectState:
    """As `project_state`, of what images are made of: files of sites, tracked or not, make no tree a changed one."""
    return project_state(root, version, leaving_out=SITES)


def project_state(
    root: Path, version: str, timeout_s: float = TIMEOUT_S, *, leaving_out: str | None = None
) -> ProjectState:
    """Asked of git, read-only; `leaving_out`: a directory whose changes do not count.

    Raises nothing: what is asked for has happened already, and has to be recorded.
    """
    try:
        commit = _git(root, timeout_s, "rev-parse", "--verify", "HEAD")
    except (OSError, subprocess.SubprocessError) as error:
        return ProjectState(version, None, True, _problem(root, error))
    if commit is None:
        return ProjectState(version, None, True)
    try:
        parts = [] if leaving_out is None else ["--", ".", f":(exclude){leaving_out}"]
        status = _git(root, timeout_s, "status", "--porcelain", "--untracked-files=normal", *parts)
    except (OSError, subprocess.SubprocessError) as error:
        return ProjectState(version, commit.strip(), True, _problem(root, error))
    return ProjectState(version, commit.strip(), status is None or status.strip() != "")


def _git(root: Path, timeout_s: float, *arguments: str) -> str | None:
    """What git printed; None when it refused, as it does outside a tree. Raises OSError and SubprocessError."""
    with TemporaryFile() as output:  # no pipe: what a killed git had started may hold it open
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        output.seek(0)
        return output.read().decode("utf-8", "replace") if done.returncode == 0 else None


def _problem(root: Path, error: Exception) -> str:
    reason = f"no answer within {error.timeout:.1f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
    return f"git does not say which commit {root} is, or whether it was changed ({reason}); recorded as changed"

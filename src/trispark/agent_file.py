"""The node agent's one file on the controller: built once for its sources and its lock, and kept in the cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.host import Say, alone, private_directory, state_directory
from trispark.lab.files import PARTIAL, hash_files, prune, source_files

NAME: Final = "trispark-node"
LOCK_WAIT_S: Final = 1800.0
"""A first build may take as long as its downloads."""


def ensure_agent(repo: Path, cache: Path) -> tuple[Path, str]:
    """The agent's one file and its SHA-256; built again when its sources or its lock change.

    The caller holds the lock of `cache`. Raises TS-LAB-SOURCE for a checkout that lacks a source, TS-BUILD-AGENT when
    the dependencies cannot be had.
    """
    sources = [*source_files(repo / "src" / "trispark_node"), repo / "requirements" / "node.txt"]
    for source in sources:
        if not source.is_file():
            raise missing_source(source)
    directory = cache / f"agent-{hash_files(repo, sources)[:12]}"
    agent, seal = directory / NAME, directory / f"{NAME}.sha256"
    if not seal.is_file():
        from trispark_node.build import build  # a checkout without the agent can still take the lab down
        from trispark_node.errors import AgentError

        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            digest = build(repo, agent)
        except AgentError as error:
            raise TrisparkError(**error.fields()) from error
        partial = seal.with_name(seal.name + PARTIAL)
        partial.write_text(digest + "\n", encoding="utf-8")
        partial.replace(seal)
        prune(cache, "agent-", [directory.name])
    return agent, seal.read_text(encoding="utf-8").strip()


def kept_agent(repo: Path, say: Say) -> tuple[Path, str]:
    """`ensure_agent` in the project's cache, alone: the lab's preparation uses the same one."""
    cache = repo / ".trispark" / "cache"
    state_directory(repo)
    private_directory(cache)
    with alone(cache / "lock", error_id="TS-LAB-BUSY", doing="preparation", wait_s=LOCK_WAIT_S, say=say):
        return ensure_agent(repo, cache)


def missing_source(path: Path) -> TrisparkError:
    return TrisparkError(
        "TS-LAB-SOURCE",
        "a source that the lab is made of is missing",
        where=str(path),
        expected="a file or directory of the project",
        observed="nothing",
        remedy="restore it from git",
    )

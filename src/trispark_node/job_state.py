"""The state file of a job: what it was asked, how far it is, how it ended. Replaced whole, so never half of it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from trispark_node import engram, processes
from trispark_node.canonical import canonical_json
from trispark_node.engram_request import EngramRequest
from trispark_node.errors import AgentError
from trispark_node.layout import STATE_FILE_MODE
from trispark_node.lock import held
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded

RUNNING, DONE, FAILED, STOPPED, DIED = "running", "done", "failed", "stopped", "died"
"""DIED is never written: it is a job that says RUNNING and has no process."""
FORESTALLED = "forestalled"
"""Of a job that was stopped before it began."""
KEPT_FORESTALLED = 32
ENDED = (DONE, FAILED, STOPPED, DIED)
MAX_BYTES = 2**20
ALONE_S = 10.0
"""For others who change the file, each for a moment."""
PROCFS = Path("/proc")
"""Of the job's own process, which is a real one also where a test gives the node another."""
_KEYS = frozenset(
    (
        *("job", "title", "fingerprint", "state", "seen", "pid", "pid_started", "started_at", "ended_at"),
        "deadline_s",
        *("directory", "files", "file", "phase", "done_bytes", "total_bytes", "mib_s", "left_s", "answer"),
    )
)


class JobFile:
    """`engram-job.json` of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._path = node.layout.engram_job
        self._known: dict[str, Any] = {}

    def read(self) -> dict[str, Any] | None:
        """None when there is none that can be read: its work is safe without it."""
        return _read(self._path)

    def find(self, job: str) -> dict[str, Any] | None:
        """The last job or the one before it: whoever follows that one may not have its result yet."""
        for found in (self.read(), _read(self._node.layout.engram_job_before)):
            if found is not None and found["job"] == job:
                return found
        return None

    def is_last(self, job: str) -> bool:
        found = self.read()
        return found is not None and found["job"] == job

    def begin(self, job: str, work: EngramRequest, total: int, deadline_s: float) -> None:
        """Raises TS-ENGRAM-JOB for one that was stopped before it began."""
        with self._alone():
            self.refuse_forestalled(job)
            before = self.read()
            if before is not None:
                self._node.disk.replace(self._node.layout.engram_job_before, canonical_json(before))
            self._begin(job, work, total, deadline_s)

    def _begin(self, job: str, work: EngramRequest, total: int, deadline_s: float) -> None:
        self._known = {
            "job": job,
            "title": work.title,
            "fingerprint": work.fingerprint,
            "state": RUNNING,
            "seen": False,
            "pid": os.getpid(),
            "pid_started": processes.start_ticks(PROCFS, os.getpid()),
            "started_at": self._node.clock.now(),
            "ended_at": None,
            "deadline_s": round(deadline_s, 1),
            "directory": str(work.directory),
            "files": engram.names(work),
            "file": "",
            "phase": "",
            "done_bytes": 0,
            "total_bytes": total,
            "mib_s": 0.0,
            "left_s": None,
            "answer": None,
        }
        self._durable()

    def is_mine(self, job: str) -> bool:
        """Whether this process began it."""
        return self._known.get("job") == job

    def progress(self, job: str, **values: Any) -> None:
        """Not synced: after a power cut there is no job to report on."""
        self._known.update(values)
        temporary = self._path.with_name(f".{self._path.name}.now")
        temporary.write_bytes(canonical_json(self._known))
        temporary.chmod(STATE_FILE_MODE)
        temporary.replace(self._path)

    def end(self, job: str, answer: dict[str, Any]) -> None:
        self._known.update(state=DONE if answer["ok"] else FAILED, ended_at=self._node.clock.now(), answer=answer)
        self._durable()

    def stop(self, job: str) -> None:
        """After the process is gone."""
        self._take_over(job, state=STOPPED, ended_at=self._node.clock.now(), seen=True)

    def see(self, job: str) -> None:
        """Somebody has the result."""
        self._take_over(job, seen=True)

    def forestall(self, job: str) -> bool:
        """Keep a job that is not known from ever beginning: its start may be on its way. False for a known one."""
        self._node.disk.make_directory(self._node.layout.root)
        with self._alone():
            if self.find(job) is not None:
                return False
            jobs = [*(each for each in self._forestalled() if each != job), job][-KEPT_FORESTALLED:]
            self._node.disk.replace(self._node.layout.engram_forestalled, canonical_json(jobs))
            return True

    def refuse_forestalled(self, job: str) -> None:
        if job in self._forestalled():
            raise AgentError(
                "TS-ENGRAM-JOB",
                "a job on this node's shards was stopped before it began",
                where=str(self._path),
                expected=f"job {job} not stopped",
                observed="stopped",
                remedy="run the verb again, which begins another one",
            )

    def _forestalled(self) -> list[Any]:
        try:
            jobs = parse_json(read_bounded(self._node.layout.engram_forestalled, MAX_BYTES))
        except (OSError, ValueError):
            return []
        return jobs if isinstance(jobs, list) else []

    def _alone(self) -> AbstractContextManager[object]:
        """For a look at the file and a change that follows from it."""
        return held(self._node.layout.lock("engram-job"), self._node.clock, ALONE_S, "engram-job")

    def _take_over(self, job: str, **values: Any) -> None:
        with self._alone():
            found = self.read()
            if found is not None and found["job"] == job:
                self._known = {**found, **values}
                self._durable()

    def _durable(self) -> None:
        self._node.disk.replace(self._path, canonical_json(self._known))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        values = parse_json(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and set(values) == _KEYS else None

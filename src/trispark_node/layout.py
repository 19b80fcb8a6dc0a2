"""Where everything lies below the node's root directory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

STATE_DIRECTORY_MODE = 0o700
STATE_FILE_MODE = 0o600
SHARED_DIRECTORY_MODE = 0o755
"""For what a container must be able to read whatever user it runs as: adapters, packed files."""
SHARED_FILE_MODE = 0o644


@dataclass(frozen=True)
class Layout:
    """Paths are made once: the agent asks for the same ones at every step."""

    root: Path

    @cached_property
    def generations(self) -> Path:
        return self.root / "generations"

    def generation(self, generation: str) -> Path:
        return self.generations / generation

    @cached_property
    def current(self) -> Path:
        """Symbolic link to `generations/<id>`, replaced by rename only."""
        return self.root / "current"

    @cached_property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @cached_property
    def epoch(self) -> Path:
        return self.root / "epoch"

    @cached_property
    def rollback(self) -> Path:
        """The rollback of the fleet that this node took part in and that is not complete; else absent."""
        return self.root / "rollback.json"

    @cached_property
    def reserve(self) -> Path:
        """Room on the disk that a rollback may use up."""
        return self.root / "reserve"

    @cached_property
    def site(self) -> Path:
        """What the node knows of its site without a controller; absent until it was told."""
        return self.root / "site.json"

    @cached_property
    def pulled(self) -> Path:
        """Images that the agent pulled by itself."""
        return self.root / "pulled.json"

    @cached_property
    def good(self) -> Path:
        return self.root / "good.jsonl"

    @cached_property
    def baseline(self) -> Path:
        """The promoted baseline; absent while the shipped one holds."""
        return self.root / "baseline.json"

    @cached_property
    def records(self) -> Path:
        return self.root / "records"

    @cached_property
    def provenance(self) -> Path:
        """What proves where images come from, by the digest of each."""
        return self.root / "provenance"

    def provenance_of(self, digest: str) -> Path:
        """`digest`: 64 hexadecimal digits."""
        return self.provenance / digest

    @cached_property
    def boots(self) -> Path:
        return self.root / "boots"

    def boot_log(self, boot_id: str) -> Path:
        return self.boots / boot_id / "engine.log"

    def boot_redaction(self, boot_id: str) -> Path:
        """What a kept log must not show to anyone who asks the agent for it; as secret as the log itself."""
        return self.boots / boot_id / "redact.json"

    @cached_property
    def engine_states(self) -> Path:
        return self.root / "engine-state"

    def engine_state(self, generation: str) -> Path:
        return self.engine_states / generation

    @cached_property
    def engine_caches(self) -> Path:
        return self.root / "engine-cache"

    def engine_cache(self, image: str) -> Path:
        """`image`: the first 16 hexadecimal digits of its digest."""
        return self.engine_caches / image

    @cached_property
    def engram_job(self) -> Path:
        """The last job on this node's shards: how far it is, or how it ended."""
        return self.root / "engram-job.json"

    @cached_property
    def engram_job_before(self) -> Path:
        """The job before the last one."""
        return self.root / "engram-job.before.json"

    @cached_property
    def engram_forestalled(self) -> Path:
        """Jobs that were stopped before they began."""
        return self.root / "engram-job.forestalled.json"

    @cached_property
    def share(self) -> Path:
        """Which mount of the checkpoint is ours."""
        return self.root / "share.json"

    @cached_property
    def adopted(self) -> Path:
        """Engines of someone else that were taken over: what they were, and the way back."""
        return self.root / "adopted"

    def adoption(self, adoption: str) -> Path:
        return self.adopted / adoption

    @cached_property
    def fleet_lock(self) -> Path:
        """Which command of which controller works on the fleet, and from which it was taken."""
        return self.root / "fleet-lock.json"

    @cached_property
    def fleet_hold(self) -> Path:
        """When that command was last heard of; held while a call of it runs."""
        return self.root / "fleet-lock.hold"

    @cached_property
    def run(self) -> Path:
        """One-shot runs and tracebacks; nothing in it is state."""
        return self.root / "run"

    @cached_property
    def restoring(self) -> Path:
        """Where a backup is unpacked and judged before it is put in place; nothing in it is state."""
        return self.root / ".restore"

    @cached_property
    def restore_replaced(self) -> Path:
        """What a restore has put aside and removes when all of it is in place."""
        return self.root / ".restore-replaced"

    def lock(self, area: str) -> Path:
        """`lock` guards the node's state; long transfers have their own (`lock.engram`, `lock.image`), so that a
        stop never waits for a file that is being packed. `lock.disk` is held by what must have the disks to itself: a
        measurement, or work on whole shards. `lock.fleet` is held for a look at the fleet lock and what follows
        from it."""
        return self.root / ("lock" if area == "state" else f"lock.{area}")

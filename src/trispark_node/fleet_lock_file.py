"""The fleet lock on this node's disk: who holds it, until when, and from whom it was taken.

`fleet-lock.json` says who holds it and is replaced whole. `fleet-lock.hold` says when the holder was last heard of, and
is held (flock) by each call of it while it runs: so a call that takes long needs no renewal, and one that was killed
leaves nothing. The hold is not synced: after a reboot its times mean nothing.

Time is the node's time since its start, never the time of day: a clock that is wrong changes no lease.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from trispark_node import processes
from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.fleet_owner import TOKEN, WORDS, Owner
from trispark_node.layout import STATE_FILE_MODE
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded

SCHEMA_VERSION = 1
LEASE_S = 60.0
LONGEST_LEASE_S = 3600.0
KEPT_LOST = 16
"""Commands that lost the lock are remembered; so many of them cannot be at work at once."""
BROKEN, EXPIRED = "broken", "expired"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_MAX_BYTES = 2**20
_HOLD_BYTES = 512
"""Always the same, so that a renewal needs no room on a full disk."""


@dataclass(frozen=True)
class Holder:
    """`taken_s` counts from the start of the host's boot `host_boot`; `since` is the time of day, for people.

    `replaced`: whose lease had ended when this one took the lock, until this one does something here: given back
    before that, the lock is the other's again.
    """

    owner: Owner
    since: str
    taken_s: float
    host_boot: str
    lease_s: float
    replaced: Holder | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Holder:
        holder = cls(
            owner=Owner.parse(fields.inner("owner")),
            since=fields.text("since", pattern=WORDS),
            taken_s=fields.seconds("taken_s", high=2**40),
            host_boot=fields.text("host_boot", pattern=WORDS),
            lease_s=fields.seconds("lease_s", high=LONGEST_LEASE_S),
            replaced=cls.parse(fields.inner("replaced")) if fields.has("replaced") else None,
        )
        fields.done()
        return holder

    def as_json(self) -> dict[str, Any]:
        value = {**asdict(self), "owner": self.owner.names()}
        del value["replaced"]
        return value if self.replaced is None else {**value, "replaced": self.replaced.as_json()}


@dataclass(frozen=True)
class Loss:
    """A command that had the lock and has it no more. `how`: BROKEN or EXPIRED; `by`: who has it instead, in words."""

    token: str
    how: str
    by: str
    why: str
    time: str

    @classmethod
    def parse(cls, fields: Fields) -> Loss:
        return cls(
            token=fields.text("token", pattern=TOKEN),
            how=fields.text("how"),
            by=fields.text("by"),
            why=fields.text("why"),
            time=fields.text("time"),
        )


@dataclass(frozen=True)
class State:
    holder: Holder | None = None
    losses: tuple[Loss, ...] = ()

    def loss(self, token: str) -> Loss | None:
        return next((loss for loss in self.losses if loss.token == token), None)


@dataclass(frozen=True)
class Renewal:
    """What the hold says: that the command was at work on this node at `renewed_s` of the host's present boot."""

    token: str
    renewed_s: float
    lease_s: float


@dataclass(frozen=True)
class Lease:
    """`left_s`: negative when it has ended; None where nothing says when. `busy`: a call of the holder runs now."""

    left_s: float | None
    busy: bool

    @property
    def alive(self) -> bool:
        return self.busy or self.left_s is None or self.left_s > 0

    def words(self) -> str:
        if self.busy:
            return "a call of it is at work"
        if self.left_s is None:
            return "its lease is not known"
        return f"its lease ends in {self.left_s:.0f} s" if self.alive else "its lease has ended"


class Damaged(ValueError):
    """The lock's file is there and says nothing; the text is what was found."""


def read(node: Node) -> State:
    """Raises Damaged, also for a file that the disk does not give."""
    try:
        content = read_bounded(node.layout.fleet_lock, _MAX_BYTES)
    except FileNotFoundError:
        return State()
    except OSError as error:
        raise Damaged(error.strerror or str(error)) from error
    return _parsed(content, str(node.layout.fleet_lock))


def _parsed(content: bytes, where: str) -> State:
    try:
        fields = Fields(parse_json(content), where)
        fields.integer("schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
        holder = Holder.parse(fields.inner("holder")) if fields.has("holder") else None
        return State(holder, tuple(Loss.parse(each) for each in fields.inners("losses")))
    except (ValueError, AttributeError, AgentError):
        raise Damaged(content[:80].decode("utf-8", "replace") or "an empty file") from None


def write(node: Node, state: State) -> None:
    node.disk.make_directory(node.layout.root)
    value = {
        "schema_version": SCHEMA_VERSION,
        "holder": state.holder.as_json() if state.holder else None,
        "losses": [asdict(loss) for loss in state.losses[-KEPT_LOST:]],
    }
    path, content = node.layout.fleet_lock, canonical_json(value) + b"\n"
    try:
        node.disk.replace(path, content)
    except IsADirectoryError:
        node.disk.rename(path, path.with_name(f"{path.name}.damaged"))
        node.disk.replace(path, content)


def new_holder(node: Node, owner: Owner, lease_s: float, replaced: Holder | None) -> Holder:
    return Holder(owner, node.clock.now(), node.clock.boottime(), node.boot_identity, lease_s, replaced)


def lease_of(node: Node, holder: Holder) -> Lease:
    """After a reboot of the node it counts from the start of the new boot."""
    now = node.clock.boottime()
    renewal = read_renewal(node)
    if renewal is not None and renewal.token == holder.owner.token:
        last_s = renewal.renewed_s
    elif holder.host_boot == node.boot_identity and holder.taken_s <= now:
        last_s = holder.taken_s
    else:
        last_s = _boot_started_s(node)
    return Lease(last_s + holder.lease_s - now, _is_busy(node))


def lease_of_damaged(node: Node) -> Lease:
    """Of a holder of whom only the hold is left."""
    renewal = read_renewal(node)
    left_s = None if renewal is None else renewal.renewed_s + renewal.lease_s - node.clock.boottime()
    return Lease(left_s, _is_busy(node))


def read_renewal(node: Node) -> Renewal | None:
    """None where there is none of this boot of the host that can be read and believed."""
    try:
        fields = Fields(parse_json(read_bounded(node.layout.fleet_hold, _HOLD_BYTES)), "hold")
        if fields.text("host_boot") != node.boot_identity:
            return None
        renewed_s = fields.seconds("renewed_s", high=2**40)
        lease_s = fields.seconds("lease_s", high=LONGEST_LEASE_S)
        return Renewal(fields.text("token"), renewed_s, lease_s) if renewed_s <= node.clock.boottime() else None
    except (OSError, ValueError, AttributeError, AgentError):
        return None


@contextmanager
def hold(node: Node, *, tolerant: bool = False) -> Iterator[int | None]:
    """Hold the hold for the body, beside other calls of the same command; its descriptor, None where the disk takes no
    renewal. `tolerant`: None whatever hinders it."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(node.layout.fleet_hold, os.O_RDWR | os.O_CREAT | flags, STATE_FILE_MODE)
    except OSError as error:
        if not tolerant and error.errno not in NO_ROOM:
            raise
        with ExitStack() as stack:
            with suppress(OSError):
                descriptor = os.open(node.layout.fleet_hold, os.O_RDONLY | os.O_NONBLOCK | flags)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def renew(node: Node, descriptor: int, token: str, lease_s: float) -> None:
    """In place and not synced; whoever reads it has the lock's own lock."""
    value = {
        "host_boot": node.boot_identity,
        "lease_s": lease_s,
        "renewed_s": round(node.clock.boottime(), 3),
        "token": token,
    }
    os.pwrite(descriptor, json.dumps(value).encode().ljust(_HOLD_BYTES), 0)


def _is_busy(node: Node) -> bool:
    try:
        descriptor = os.open(node.layout.fleet_hold, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _boot_started_s(node: Node) -> float:
    """When this boot of the host, or of the container that plays one, began on the same clock."""
    return processes.start_ticks(node.procfs, 1) / os.sysconf("SC_CLK_TCK")

"""One command at a time on the fleet: what each changing verb asks before it does anything, and `lock-*`.

A verb with an owner needs the lock to be that command's. It is taken where it is free or its lease has ended, and a
command that lost it does nothing any more. Without an owner, for a person on the node's shell, nothing is asked but
before `start`.

A file that cannot be read is of nobody who can be named: it counts until the lease in the hold has ended, and where
that says nothing until somebody breaks it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from trispark_node import fleet_lock_file as file
from trispark_node.errors import AgentError
from trispark_node.fleet_lock_file import BROKEN, EXPIRED, Damaged, Holder, Lease, Loss, State
from trispark_node.fleet_owner import Owner
from trispark_node.lock import held
from trispark_node.node import Node

ALONE_S = 10.0
"""For others who look at the lock, each for a moment."""
NEEDS_A_FREE_LOCK = frozenset({"start"})
"""Also without an owner: an engine that is started beside a command at work would be in its way."""
INCIDENT = frozenset({"stop", "rollback", "recover"})
"""What must work on a full, read-only or broken disk, and what a command that breaks the lock does first."""
BY_HAND = "a person on the node"
BREAK = "lock-break"
"""The journal's name for a lock that was taken from a command at work."""
WAIT = "wait until it has ended; or ./trispark rollback, which breaks the lock"


@contextmanager
def admitted(node: Node, verb: str, owner: Owner | None, lease_s: float = file.LEASE_S) -> Iterator[dict[str, Any]]:
    """For a changing verb: the body runs while the lock is this command's. Yields what the answer says besides.
    `lease_s`: where the call itself takes it.

    Raises TS-LOCK-HELD, TS-LOCK-LOST, TS-LOCK-DAMAGED before the body.
    """
    if owner is None:
        if verb in NEEDS_A_FREE_LOCK:
            _refuse_a_live_lock(node)
        yield {}
        return
    notes: dict[str, Any] = {}
    with ExitStack() as stack:
        with _alone(node, tolerant=verb in INCIDENT, notes=notes):
            breaks = f"{owner.reason} ({verb})" if owner.breaks and verb in INCIDENT else None
            holder, broke = _take(node, owner, lease_s, breaks, verb in INCIDENT, notes)
            if broke is not None:
                notes["broke"] = broke
            descriptor = stack.enter_context(file.hold(node, tolerant=verb in INCIDENT))
            _renew(node, descriptor, holder, verb in INCIDENT, notes)
        try:
            yield notes
        finally:
            _renew_mine(node, owner, descriptor)


@contextmanager
def renewed(node: Node, owner: Owner | None) -> Iterator[None]:
    """For a reading verb: the lock is renewed where it is this command's, and nothing is refused."""
    with ExitStack() as stack:
        descriptor = None
        if owner is not None and _is_mine(node, owner):
            with suppress(OSError):
                descriptor = stack.enter_context(file.hold(node))
            _renew_mine(node, owner, descriptor)
        try:
            yield
        finally:
            if owner is not None and descriptor is not None:
                _renew_mine(node, owner, descriptor)


def refuse_lost(node: Node, owner: Owner | None) -> None:
    """Once more when a verb has waited for the node's own lock: it may have been broken meanwhile."""
    if owner is None:
        return
    with suppress(Damaged):
        loss = file.read(node).loss(owner.token)
        if loss is not None:
            raise _lost(node, loss)


def take(node: Node, owner: Owner, lease_s: float, why: str | None, of: str | None) -> dict[str, Any]:
    """`lock-take`. `why`: the lock is broken for that, and only where it is still held by `of`, if that is given.

    `broke`: whose it was, None where nothing was broken. A command whose lease ended may take it anew; one from which
    it was broken may not.
    """
    notes: dict[str, Any] = {}
    with _alone(node, tolerant=True, notes=notes):
        mine = _is_mine(node, owner)
        holder, broke = _take(node, owner, lease_s, why, True, notes, of, anew=True)
        with file.hold(node, tolerant=True) as descriptor:
            _renew(node, descriptor, holder, True, notes)
    return {"changed": not mine, "broke": broke, **notes}


def release(node: Node, owner: Owner | None, why: str | None) -> dict[str, Any]:
    """`lock-release`. Of another command's, or of nobody's, nothing; with `why` whoever holds it.

    A command that did nothing here leaves the lock as it was, also that of one whose lease had ended: it may be at work
    on another node.
    """
    notes: dict[str, Any] = {}
    with _alone(node, tolerant=True, notes=notes):
        if why is None:
            with suppress(Damaged):
                state = file.read(node)
                if owner is not None and state.holder is not None and state.holder.owner.token == owner.token:
                    _write(node, _before(state, state.holder.replaced), True, notes)
                    return {"changed": True, "broke": None, **notes}
            return {"changed": False, "broke": None, **notes}
        try:
            state = file.read(node)
        except Damaged as damage:
            broke: dict[str, Any] | None = {"damaged": str(damage)}
            state = State()
        else:
            broke = state.holder.owner.names() if state.holder is not None else None
        if broke is None:
            return {"changed": False, "broke": None, **notes}
        losses = _with_loss(node, state, BROKEN, owner.line() if owner else BY_HAND, why)
        by = owner.names() if owner else {"reason": BY_HAND}
        with node.journal.step(BREAK, {"broke": broke, "by": by, "why": why}, required=False):
            _write(node, State(None, losses), True, notes)
        return {"changed": True, "broke": broke, **notes}


def show(node: Node) -> dict[str, Any]:
    """Reads only: `holder` with its lease, commands that lost the lock, and what is damaged."""
    answer: dict[str, Any] = {"holder": None, "losses": [], "damaged": None}
    if not node.layout.fleet_lock.exists():
        return answer
    with ExitStack() as stack:
        if node.layout.lock("fleet").exists():
            with suppress(AgentError):  # looked at all the same; a lease may then look busy for a moment
                stack.enter_context(held(node.layout.lock("fleet"), node.clock, 1, "lock-show"))
        try:
            state = file.read(node)
        except Damaged as damage:
            return {**answer, "damaged": str(damage), **_lease_fields(file.lease_of_damaged(node))}
        answer["losses"] = [vars(loss) for loss in state.losses]
        if state.holder is not None:
            lease = file.lease_of(node, state.holder)
            answer["holder"] = {**state.holder.owner.names(), "since": state.holder.since, **_lease_fields(lease)}
    return answer


@dataclass(frozen=True)
class _Found:
    """`state` as it counts: a damaged file has no holder, and its `lease` is what the hold says."""

    state: State
    lease: Lease | None
    damage: str | None


def _found(node: Node) -> _Found:
    try:
        state = file.read(node)
    except Damaged as damage:
        return _Found(State(), file.lease_of_damaged(node), str(damage))
    return _Found(state, file.lease_of(node, state.holder) if state.holder else None, None)


def _take(
    node: Node,
    owner: Owner,
    lease_s: float,
    why: str | None,
    tolerant: bool,
    notes: dict[str, Any],
    of: str | None = None,
    anew: bool = False,
) -> tuple[Holder, dict[str, Any] | None]:
    """The holder, who is `owner`, and from whom the lock was broken. The caller holds the lock's own lock.

    `anew`: the command begins something here, so that an ended lease is forgiven; a broken lock never is. Without it,
    the command does something here.
    """
    found = _found(node)
    state, holder = found.state, found.state.holder
    loss = state.loss(owner.token)
    if loss is not None and not (anew and loss.how == EXPIRED):
        raise _lost(node, loss)
    state = replace(state, losses=tuple(each for each in state.losses if each != loss))
    if holder is not None and holder.owner.token == owner.token:
        if anew or holder.replaced is None:
            return holder, None
        holder = replace(holder, replaced=None)
        _write(node, replace(state, holder=holder), tolerant, notes)
        return holder, None
    renewal = file.read_renewal(node)
    if found.damage is not None and renewal is not None and renewal.token == owner.token:
        found = _Found(state, None, found.damage)  # its own, as the hold says: written anew
    alive = found.lease is not None and found.lease.alive
    breaks = why is not None and (of is None or (holder is not None and holder.owner.token == of))
    if alive and not breaks:
        raise _refusal(node, found)
    if why is None or not breaks or not (alive or holder is not None):
        mine = file.new_holder(node, owner, lease_s, replace(holder, replaced=None) if anew and holder else None)
        losses = _with_loss(node, state, EXPIRED, owner.line(), "its lease had ended")
        _write(node, State(mine, losses), tolerant, notes)
        return mine, None
    mine = file.new_holder(node, owner, lease_s, None)
    # An ended lease, too: its command may only have been asleep.
    broke: dict[str, Any] = {"damaged": found.damage} if holder is None else holder.owner.names()
    losses = _with_loss(node, state, BROKEN, owner.line(), why)
    with node.journal.step(BREAK, {"broke": broke, "by": owner.names(), "why": why}, required=False):
        _write(node, State(mine, losses), tolerant, notes)
    return mine, {**broke, **({"since": holder.since} if holder else {})}


def _before(state: State, replaced: Holder | None) -> State:
    """As it was before a command took the lock and did nothing with it."""
    tokens = [] if replaced is None else [replaced.owner.token]
    return State(replaced, tuple(loss for loss in state.losses if loss.how != EXPIRED or loss.token not in tokens))


def _with_loss(node: Node, state: State, how: str, by: str, why: str) -> tuple[Loss, ...]:
    """A break cuts off every command from before, those whose lease ended earlier as well."""
    tokens = [loss.token for loss in state.losses if how == BROKEN and loss.how == EXPIRED]
    tokens += [state.holder.owner.token] if state.holder is not None else []
    kept = [loss for loss in state.losses if loss.token not in tokens]
    return (*kept, *(Loss(token, how, by, why, node.clock.now()) for token in tokens))


def _write(node: Node, state: State, tolerant: bool, notes: dict[str, Any]) -> None:
    with _room(tolerant, notes):
        file.write(node, state)


def _renew(node: Node, descriptor: int | None, holder: Holder, tolerant: bool, notes: dict[str, Any]) -> None:
    with _room(tolerant, notes):
        if descriptor is None:
            raise OSError(errno.EROFS, "it takes no renewal", str(node.layout.fleet_hold))
        file.renew(node, descriptor, holder.owner.token, holder.lease_s)


def _renew_mine(node: Node, owner: Owner, descriptor: int | None) -> None:
    """At an end, where nothing may fail any more: only the lease is shorter without it. After an uninstall there is no
    lock, and none is made."""
    if descriptor is None or not node.layout.fleet_lock.exists():
        return
    with suppress(OSError, AgentError, Damaged), held(node.layout.lock("fleet"), node.clock, ALONE_S, "renewal"):
        holder = file.read(node).holder
        if holder is not None and holder.owner.token == owner.token:
            file.renew(node, descriptor, owner.token, holder.lease_s)


@contextmanager
def _room(tolerant: bool, notes: dict[str, Any]) -> Iterator[None]:
    """No fault of the disk keeps an incident's verb from its work; the answer says that the lock is not written."""
    try:
        yield
    except OSError:
        if not tolerant:
            raise
        notes["lock_unwritten"] = True


@contextmanager
def _alone(node: Node, *, tolerant: bool, notes: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        with _room(tolerant, notes):
            node.disk.make_directory(node.layout.root)
            stack.enter_context(held(node.layout.lock("fleet"), node.clock, ALONE_S, "fleet lock"))
        yield


def _is_mine(node: Node, owner: Owner) -> bool:
    try:
        holder = file.read(node).holder
    except Damaged:
        return False
    return holder is not None and holder.owner.token == owner.token


def _refuse_a_live_lock(node: Node) -> None:
    if not node.layout.fleet_lock.exists():
        return
    found = _found(node)
    if found.lease is not None and found.lease.alive:
        raise _refusal(node, found)


def _lease_fields(lease: Lease) -> dict[str, Any]:
    left_s = None if lease.left_s is None else round(max(lease.left_s, 0.0), 1)
    return {"alive": lease.alive, "busy": lease.busy, "lease_left_s": left_s}


def _refusal(node: Node, found: _Found) -> AgentError:
    holder, lease = found.state.holder, found.lease or Lease(0.0, False)
    if holder is None:
        return AgentError(
            "TS-LOCK-DAMAGED",
            "the fleet lock cannot be read, so whoever holds it is not known",
            where=str(node.layout.fleet_lock),
            expected="who holds it, or an ended lease",
            observed=f"{found.damage}; {lease.words()}",
            remedy="see that nobody works on the fleet; then ./trispark rollback breaks the lock, or on the node "
            "trispark-node lock-release with why",
            extra={"lock": {"holder": None, "damaged": found.damage, **_lease_fields(lease)}},
        )
    return AgentError(
        "TS-LOCK-HELD",
        "another command works on this fleet",
        where=str(node.layout.fleet_lock),
        expected="no other command, or one whose lease has ended",
        observed=f"{holder.owner.line()}, since {holder.since}; {lease.words()}",
        remedy=WAIT,
        extra={"lock": {"holder": {**holder.owner.names(), "since": holder.since, **_lease_fields(lease)}}},
    )


def _lost(node: Node, loss: Loss) -> AgentError:
    how = "broken" if loss.how == BROKEN else "taken after its lease had ended"
    return AgentError(
        "TS-LOCK-LOST",
        "this command does not hold the fleet lock any more and does nothing further",
        where=str(node.layout.fleet_lock),
        expected="the lock until its end",
        observed=f"{how} by {loss.by} at {loss.time}: {loss.why}",
        remedy="see ./trispark status for what is true now; a new command takes the lock again",
        extra={"lost": vars(loss)},
    )

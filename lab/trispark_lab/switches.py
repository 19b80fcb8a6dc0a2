"""Switches that a running engine may turn between two steps, because what they change never changes a result.

Rank 0 gives an order a number, its epoch; every rank turns its own part at the same step boundary and acknowledges the
epoch with the state that it is in then. `declared` is the state that the launch asked for; an order holds for a time
only, after which rank 0 goes back to it, so that a client that is killed leaves nothing behind.
"""

import math
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from .collective import Collective

MAX_HOLD_S = 600.0
_ORDER = struct.Struct("<I?")
_ACK = struct.Struct("<I??")


class Switch(Protocol):
    """One rank's part of a switch. It is only turned between two steps, in the thread of the steps."""

    @property
    def on(self) -> bool:
        """Whether it acts."""

    def turn(self, on: bool) -> None:
        """Let it act or not. An exception is a refusal; the rank says so to rank 0."""


_of_adapters: dict[str, Switch] = {}


def register(name: str, switch: Switch) -> None:
    """Add a switch of this process; adapters use this while the engine's modules are being imported."""
    _of_adapters[name] = switch


def registered() -> dict[str, Switch]:
    """What adapters of this process registered."""
    return dict(_of_adapters)


@dataclass(frozen=True)
class Order:
    """Turn `name` on or off; `epoch` is its number."""

    epoch: int
    name: str
    on: bool

    def encode(self) -> bytes:
        """For the broadcast."""
        return _ORDER.pack(self.epoch, self.on) + self.name.encode()

    @classmethod
    def decode(cls, payload: bytes) -> "Order":
        """From a broadcast."""
        epoch, on = _ORDER.unpack_from(payload)
        return cls(epoch, payload[_ORDER.size :].decode(), on)


@dataclass(frozen=True)
class Acknowledgement:
    """What a rank says of an order: the epoch that it took over, the state that it is in, and whether it refused."""

    epoch: int
    on: bool
    refused: bool

    def encode(self) -> bytes:
        """Of one size, as all that ranks exchange."""
        return _ACK.pack(self.epoch, self.on, self.refused)

    @classmethod
    def decode(cls, payload: bytes) -> "Acknowledgement":
        """From the exchange."""
        return cls(*_ACK.unpack(payload))


class RankSwitches:
    """The switches of one rank and the epoch that it is in."""

    def __init__(self, switches: Mapping[str, Switch], log: Callable[[str], None] = lambda line: None) -> None:
        self.switches = dict(switches)
        self.declared = {name: switch.on for name, switch in self.switches.items()}
        self.epoch = 0
        self._log = log

    def obey(self, order: Order) -> Acknowledgement:
        """Turn, and say what is so now. A rank that has no such switch, or cannot turn it, refuses."""
        self.epoch = order.epoch
        switch = self.switches.get(order.name)
        why = "it has no such switch" if switch is None else ""
        if switch is not None:
            try:
                switch.turn(order.on)
            except Exception as error:  # whatever it is, the other ranks must hear of it
                why = f"{type(error).__name__}: {error}"
        on = switch is not None and switch.on
        refused = bool(why) or on is not order.on
        said = f"refused, {why or 'it did not turn'}" if refused else f"{'on' if on else 'off'}"
        self._log(f"[switch] {order.name} epoch {order.epoch}: {said}")
        return Acknowledgement(order.epoch, on, refused)


def exchange(switches: RankSwitches, collective: Collective, order: Order) -> dict[int, Acknowledgement]:
    """Every rank's side of an order: turn, tell all others, hear all others. {rank: what it said}."""
    own = switches.obey(order)
    found = collective.gather(f"acknowledgement of switch epoch {order.epoch}", own.encode())
    return {rank: Acknowledgement.decode(payload) for rank, payload in sorted(found.items())}


@dataclass(frozen=True)
class Turned:
    """What came of an order on all ranks."""

    order: Order
    acknowledged: Mapping[int, Acknowledgement]

    @property
    def agreed(self) -> bool:
        """Whether every rank took over this epoch and is in the wanted state."""
        return all(
            ack.epoch == self.order.epoch and ack.on is self.order.on and not ack.refused
            for ack in self.acknowledged.values()
        )

    def as_json(self) -> dict[str, object]:
        """For the API."""
        return {
            "name": self.order.name,
            "on": self.order.on,
            "epoch": self.order.epoch,
            "agreed": self.agreed,
            "acknowledged": [
                {"rank": rank, "epoch": ack.epoch, "on": ack.on, "refused": ack.refused}
                for rank, ack in self.acknowledged.items()
            ],
        }


class SwitchBoard:
    """Rank 0: gives orders, and takes them back when their time is over. Used in the thread of the steps alone.

    `send` tells all ranks and gives what they acknowledged.
    """

    def __init__(
        self,
        switches: RankSwitches,
        send: Callable[[Order], Mapping[int, Acknowledgement]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switches = switches
        self._send = send
        self._clock = clock
        self._until: dict[str, float] = {}

    @property
    def names(self) -> frozenset[str]:
        """Switches of this engine."""
        return frozenset(self._switches.switches)

    def turn(self, name: str, on: bool, hold_s: float) -> Turned:
        """Order it, for so many seconds. KeyError for what is no switch, ValueError for a time out of range."""
        if name not in self.names:
            raise KeyError(name)
        if not (math.isfinite(hold_s) and 0 < hold_s <= MAX_HOLD_S):
            raise ValueError(f"hold_s is above 0 and at most {MAX_HOLD_S:g}")
        turned = self._order(name, on)
        if turned.agreed and on is self._switches.declared[name]:
            self._until.pop(name, None)
        else:
            self._until[name] = self._clock() + hold_s
        return turned

    def expire(self) -> list[Turned]:
        """Go back to what was declared where an order's time is over. What is refused then is tried again later."""
        now = self._clock()
        done = []
        for name in [name for name, until in self._until.items() if now >= until]:
            done.append(self._order(name, self._switches.declared[name]))
            if done[-1].agreed:
                del self._until[name]
            else:
                self._until[name] = now + MAX_HOLD_S
        return done

    def state(self) -> dict[str, dict[str, object]]:
        """{switch: what rank 0 knows of it}; may be read from any thread."""
        return {
            name: {"on": switch.on, "declared": self._switches.declared[name], "epoch": self._switches.epoch}
            for name, switch in self._switches.switches.items()
        }

    def _order(self, name: str, on: bool) -> Turned:
        order = Order(self._switches.epoch + 1, name, on)
        return Turned(order, self._send(order))

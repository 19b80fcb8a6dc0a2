"""`python3 -m trispark_bench.rounds INPUT.json OUTPUT.json`: one switch of a running engine, off and on by turns.

A round is four passes, off on on off (ABBA), over the same prompts; the first round is measured and dropped. Before a
pass every rank has acknowledged the switch; after it the switch must still be as it was ordered, the counters of the
server must have grown by our requests alone, and every text must be, byte for byte, what it was before in this state.
A text that differs between the states ends the rounds after the round, when each state has repeated its own.
Whatever happens, the switch is brought back to what the launch declared, and it is looked whether it is.

0 with an output, whatever it says, 1 without one, 2 for a wrong input. OUTPUT.json: see `Rounds`; its `ended` has a
`code` of CODES and `what` was seen.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trispark_bench.cells import Job
from trispark_bench.counters import Counters, CountersError
from trispark_bench.link import kernel_stamps
from trispark_bench.plan import BenchPlan, PlanError
from trispark_bench.request import Request, chat_body
from trispark_bench.sample import Sample
from trispark_bench.wire import Silence, Target, WireError, connected, fetch

ROUNDS_PROTOCOL = 1
ORDER = ((0, False), (1, True), (2, True), (3, False))
"""(place in a round, whether the switch is on)."""
LEAST_ROUNDS = 8
MOST_ROUNDS = 64
CODES = ("acknowledgement", "difference", "repeat", "traffic", "request", "engine", "interrupted")
COUNTED = ("generation_tokens", "finished_requests")
RESTORE_S = 30.0


class Ended(RuntimeError):
    """The rounds are over before their end. `code` is one of CODES."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class RoundsPlan:
    """`rounds` are those that count, one more goes before; `world`: how many ranks have to acknowledge; `hold_s`: after
    so long the engine takes an order back by itself."""

    bench: BenchPlan
    switch: str
    rounds: int
    world: int
    hold_s: float

    @classmethod
    def from_json(cls, data: Any) -> RoundsPlan:
        """Raises PlanError."""
        try:
            plan = cls(
                BenchPlan.from_json(data["bench"]),
                str(data["switch"]),
                int(data["rounds"]),
                int(data["world"]),
                float(data["hold_s"]),
            )
            protocol = data["protocol"]
        except (KeyError, TypeError) as error:
            raise PlanError(f"rounds need protocol, bench, switch, rounds, world and hold_s: {error}") from None
        except ValueError as error:
            raise PlanError(str(error)) from None
        if protocol != ROUNDS_PROTOCOL:
            raise PlanError(f"rounds of protocol {protocol} are asked for, this client has {ROUNDS_PROTOCOL}")
        if not LEAST_ROUNDS <= plan.rounds <= MOST_ROUNDS or plan.world < 1 or not 0 < plan.hold_s <= 600:
            raise PlanError(f"rounds are {LEAST_ROUNDS} to {MOST_ROUNDS}, world is from 1, hold_s above 0 to 600")
        return plan


@dataclass
class Rounds:
    """What was measured so far.

    passes    {round, place, on, epoch, acknowledged: [{rank, epoch, on, refused}], requests: [Sample], ended_ns}
    identity  of the server before the first pass and after the last
    restored  {on, declared, epoch, verified, why}: the switch after all; None where it was never turned
    """

    passes: list[dict[str, Any]] = field(default_factory=list)
    identity: list[dict[str, Any]] = field(default_factory=list)
    restored: dict[str, Any] | None = None
    ended: dict[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The client's output."""
        return {
            "protocol": ROUNDS_PROTOCOL,
            "passes": self.passes,
            "identity": self.identity,
            "restored": self.restored,
            "ended": self.ended,
        }


async def run_rounds(plan: RoundsPlan, results: Rounds) -> None:
    """Fills `results`; an end before the last round is in its `ended`. CancelledError passes, after the way back."""
    run = _Run(plan, results)
    try:
        async with asyncio.timeout(plan.bench.deadline_s):
            with kernel_stamps():
                await run.run()
    except Ended as end:
        results.ended = {"code": end.code, "what": str(end)}
    except (Silence, TimeoutError, CountersError, WireError, OSError) as error:
        results.ended = {"code": "engine", "what": f"{type(error).__name__}: {error}"}
    except asyncio.CancelledError:
        results.ended = {"code": "interrupted", "what": "a signal"}
        raise
    finally:
        await _whole(asyncio.ensure_future(run.restore()))


async def _whole(task: asyncio.Task[None]) -> None:
    """Waits until the task is done, whatever cancels the one that waits; that is raised then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


class _Run:
    def __init__(self, plan: RoundsPlan, results: Rounds) -> None:
        self._plan = plan
        self._results = results
        self._target: Target = plan.bench.target()
        self._counters = Counters(self._target, plan.bench.silence_s)
        self._texts: dict[tuple[str, str], dict[bool, tuple[str | None, int]]] = {}
        self._begin_ns = time.monotonic_ns()
        self._epoch = -1
        self._declared: bool | None = None

    async def run(self) -> None:
        state = await self._state()
        self._declared = bool(state["declared"])
        self._epoch = int(state["epoch"])
        before = await self._counters.read()
        self._results.identity.append(before["identity"])
        counted = _counted(before)
        for index in range(self._plan.rounds + 1):
            for place, on in ORDER:
                counted = await self._pass(index, place, on, counted)
            self._require_same(index)
        self._results.identity.append((await self._counters.read())["identity"])

    async def restore(self) -> None:
        """Back to what the launch declared, and a look at it; what hinders that is said in the results."""
        if self._declared is None:
            return
        done: dict[str, Any] = {"on": None, "declared": self._declared, "epoch": None, "verified": False, "why": ""}
        self._results.restored = done
        try:
            async with asyncio.timeout(RESTORE_S):
                await self._turn(self._declared)
                state = await self._state()
            done.update(on=state["on"], epoch=state["epoch"], verified=state["on"] is self._declared)
        except (Ended, Silence, TimeoutError, WireError, OSError) as error:
            done["why"] = f"{error}; the engine goes back by itself after {self._plan.hold_s:g} s"

    async def _pass(self, index: int, place: int, on: bool, counted: Mapping[str, float]) -> dict[str, float]:
        acknowledged = await self._turn(on)
        samples = [await self._request(job, index, on) for job in self._jobs(index)]
        state = await self._state()
        if state["on"] is not on or state["epoch"] != self._epoch:
            raise Ended(
                "acknowledgement",
                f"round {index} pass {place}: the switch was {_word(on)} in epoch {self._epoch} before it and is "
                f"{_word(state['on'])} in epoch {state['epoch']} after it",
            )
        now = _counted(await self._counters.read())
        self._results.passes.append(
            {
                "round": index,
                "place": place,
                "on": on,
                "epoch": self._epoch,
                "acknowledged": acknowledged,
                "requests": [sample.as_json() for sample in samples],
                "ended_ns": time.monotonic_ns() - self._begin_ns,
            }
        )
        self._require_ours(f"round {index} pass {place}", samples, counted, now)
        return now

    def _jobs(self, index: int) -> list[Job]:
        """One request a workload, whose prompts take turns by rounds; the four passes of a round have the same."""
        bench = self._plan.bench
        return [
            Job(name, name, each.prompts[index % len(each.prompts)], each, bench.max_tokens)
            for name, each in bench.workloads.items()
        ]

    async def _request(self, job: Job, index: int, on: bool) -> Sample:
        bench = self._plan.bench
        begun = Sample(f"rounds-{job.workload}", job.workload, index)
        # One seed for all: a sampled text has to repeat too.
        body = chat_body(bench, job.draw, job.prompt, job.max_tokens, 0)
        request = Request(self._target, body, begun, bench.model)
        try:
            await request.prepare(time.monotonic_ns(), self._begin_ns)
            request.send()
            await request.over(bench.silence_s)
            sample = request.sample(self._begin_ns)
        finally:
            request.close()
        if sample.error:
            raise Ended("request", f"{job.workload}: {sample.error}")
        found = (sample.text_sha, sample.completion_tokens or 0)
        known = self._texts.setdefault((job.workload, job.prompt), {}).setdefault(on, found)
        if known != found:
            raise Ended(
                "repeat", f"{job.workload}, round {index}: {_text(found)}, before it {_text(known)}, both {_word(on)}"
            )
        return sample

    def _require_same(self, index: int) -> None:
        """After a whole round each state has given each of its texts twice, so a difference is the switch's."""
        for (workload, _), found in self._texts.items():
            if found[False] != found[True]:
                raise Ended(
                    "difference", f"{workload}, round {index}: off {_text(found[False])}, on {_text(found[True])}"
                )

    def _require_ours(
        self, where: str, samples: list[Sample], before: Mapping[str, float], now: Mapping[str, float]
    ) -> None:
        """The server counted what we got and nothing else. What it does not tell cannot be said to be ours."""
        ours = {
            "generation_tokens": float(sum(sample.completion_tokens or 0 for sample in samples)),
            "finished_requests": float(len(samples)),
        }
        for name, expected in ours.items():
            if name not in now or name not in before:
                raise Ended("traffic", f"the server does not tell its {name}")
            if now[name] - before[name] != expected:
                raise Ended(
                    "traffic", f"{where}: the server counted {now[name] - before[name]:g} {name}, ours are {expected:g}"
                )

    async def _turn(self, on: bool) -> list[dict[str, Any]]:
        """Order it, and require that every rank has taken over this very order."""
        order = {"name": self._plan.switch, "on": on, "hold_s": self._plan.hold_s}
        status, answer = await _post(self._target, "/lab/switch", order, self._plan.bench.silence_s)
        if status not in (200, 409):
            raise Ended("engine", f"HTTP {status} for the order: {answer}")
        try:
            epoch, acks = int(answer["epoch"]), list(answer["acknowledged"])
            ranks = sorted(int(ack["rank"]) for ack in acks)
            wrong = [ack for ack in acks if ack["epoch"] != epoch or ack["on"] is not on or ack["refused"]]
        except (KeyError, TypeError, ValueError):
            raise Ended("acknowledgement", f"no acknowledgements in the answer: {answer}") from None
        if ranks != list(range(self._plan.world)):
            raise Ended("acknowledgement", f"ranks {ranks} acknowledged, of {self._plan.world}")
        if wrong or not answer.get("agreed") or status != 200:
            raise Ended("acknowledgement", f"epoch {epoch}, {_word(on)}: {wrong or acks}")
        if epoch <= self._epoch:
            raise Ended("acknowledgement", f"epoch {epoch} after epoch {self._epoch}")
        self._epoch = epoch
        return acks

    async def _state(self) -> dict[str, Any]:
        status, content = await fetch(self._target, "/lab/switches", self._plan.bench.silence_s)
        try:
            found = json.loads(content)["switches"][self._plan.switch] if status == 200 else None
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, dict) or not {"on", "declared", "epoch"} <= set(found):
            text = content[:200].decode(errors="replace")
            raise Ended("engine", f"the engine has no switch {self._plan.switch}: HTTP {status}: {text}")
        return found


def _counted(read: Mapping[str, Any]) -> dict[str, float]:
    state = read["state"]
    return {name: float(state[name]) for name in COUNTED if isinstance(state.get(name), int | float)}


def _text(found: tuple[str | None, int]) -> str:
    return f"{found[1]} tokens with the hash {found[0]}"


def _word(on: object) -> str:
    return "on" if on is True else "off" if on is False else str(on)


async def _post(target: Target, path: str, body: Mapping[str, Any], silence_s: float) -> tuple[int, Any]:
    """(status, the answer's JSON, or its text). Raises WireError and Silence."""
    wire = await connected(target)
    try:
        wire.send(target.request("POST", path, json.dumps(body).encode()))
        await wire.finished(silence_s)
        content = wire.content()
        try:
            return wire.status(), json.loads(content)
        except (ValueError, RecursionError):
            return wire.status(), content[:200].decode(errors="replace")
    finally:
        wire.close()


async def _until_signal(plan: RoundsPlan, results: Rounds) -> None:
    """A SIGTERM or SIGINT ends the rounds, after the way back."""
    task = asyncio.ensure_future(run_rounds(plan, results))

    def end() -> None:
        if not task.cancelling():  # a second signal does not hinder the way back
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    with suppress(asyncio.CancelledError):
        await task


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python3 -m trispark_bench.rounds INPUT.json OUTPUT.json", file=sys.stderr)
        return 2
    source, target = Path(arguments[0]), Path(arguments[1])
    try:
        plan = RoundsPlan.from_json(json.loads(source.read_text(encoding="utf-8")))
    except (PlanError, OSError, ValueError) as error:
        print(
            f"TS-BENCH-INPUT: the rounds cannot be begun; where: {source}; "
            f"expected: what trispark_bench.rounds reads; observed: {error}; "
            "do: use the load client's image of this version (./trispark play images)",
            file=sys.stderr,
        )
        return 2
    results = Rounds()
    asyncio.run(_until_signal(plan, results))
    temporary = target.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(results.as_json(), allow_nan=False), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        print(f"the results cannot be written to {target}: {error}", file=sys.stderr)
        return 1
    # What ended early is judged by who started it, from the output; the exit status says that there is one.
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

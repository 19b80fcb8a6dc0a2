"""One streamed chat request, sent and timed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trispark_bench.plan import BenchPlan, Workload
from trispark_bench.sample import Sample, read_stream
from trispark_bench.sse import events
from trispark_bench.wire import Target, Wire, WireError, connected

PATH = "/v1/chat/completions"


def chat_body(plan: BenchPlan, workload: Workload, prompt: str, max_tokens: int, index: int) -> dict[str, Any]:
    """A request of exactly `max_tokens` tokens, so that every repetition does the same work."""
    kwargs: dict[str, Any] = {"thinking": plan.thinking}
    if plan.reasoning_effort is not None:
        kwargs["reasoning_effort"] = plan.reasoning_effort
    body: dict[str, Any] = {
        "model": plan.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": workload.temperature,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_spec_tokens_details": True,
        "chat_template_kwargs": kwargs,
    }
    if workload.temperature > 0:
        body["top_p"] = workload.top_p
        body["seed"] = plan.seed + max(index, 0)
    return body


class Request:
    """A request that is ready to go: its connection is open and its bytes are made, so that a wave starts at once."""

    def __init__(self, target: Target, body: dict[str, Any], begun: Sample, model: str) -> None:
        self.begun = begun
        self._target = target
        self._bytes = target.request("POST", PATH, json.dumps(body, ensure_ascii=False).encode())
        self._model = model
        self._wire: Wire | None = None
        self._broken: str | None = None

    async def prepare(self, now_ns: int, begin_ns: int) -> None:
        """Open the connection; a failure becomes the sample's error."""
        try:
            self._wire = await connected(self._target)
        except WireError as error:
            self.begun = replace(self.begun, sent_ns=now_ns - begin_ns, error=str(error))

    def send(self) -> None:
        """Stamp and send; nothing where there is no connection."""
        if self._wire is not None:
            self._wire.send(self._bytes)

    @property
    def sent_ns(self) -> int | None:
        """The clock when it was sent."""
        return self._wire.sent_ns if self._wire is not None else None

    async def flowing(self, silence_s: float) -> None:
        """Wait until its answer is on its way, or is over."""
        if self._wire is not None:
            await self._wire.flowing(silence_s)

    async def over(self, silence_s: float) -> None:
        """Wait for the end of its answer, whatever it is. Raises Silence: whatever follows would be waited for as long.

        Nothing is read here: while one answer is read, those of others would be stamped late.
        """
        if self._wire is None:
            return
        try:
            await self._wire.finished(silence_s)
        except WireError as error:
            self._broken = str(error)

    def sample(self, begin_ns: int) -> Sample:
        """What came, when the answers of its round are all over."""
        wire = self._wire
        if wire is None:
            return self.begun
        wire.close()
        return self._read(wire, self._broken, begin_ns)

    def close(self) -> None:
        """Give the connection up."""
        if self._wire is not None:
            self._wire.close()

    def _read(self, wire: Wire, broken: str | None, begin_ns: int) -> Sample:
        status = wire.status()
        begun = replace(
            self.begun,
            sent_ns=wire.sent_ns - begin_ns,
            ended_ns=wire.ended_ns - begin_ns,
            status=status or None,
            stamps="kernel" if wire.stamped_by_kernel else "read",
        )
        if status and status != 200:
            detail = wire.content()[:200].decode(errors="replace").replace("\n", " ")
            return begun.failed(f"HTTP {status}: {detail}")
        stream, rest = events(wire.pieces())
        sample = read_stream(begun, stream, rest, wire.sent_ns, self._model)
        # How the connection ended is the cause of whatever its stream lacks.
        return sample if broken is None else sample.failed(f"{broken}; {len(stream)} events had come")

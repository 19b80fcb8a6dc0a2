"""One request on its way: tokens come from the engine's thread, text goes to the client."""

import asyncio
import secrets
import time
import uuid
from dataclasses import dataclass
from typing import Protocol

from .api_fields import BadRequest
from .api_schema import DEFAULT_MAX_TOKENS, GenerationRequest
from .requests import Request, TokenLogprob
from .sampling import MAX_SEED, Sampling
from .scheduler import QueueFull, Unsupported
from .tokenizer import StreamDecoder, Tokenizer


class Engine(Protocol):
    """What the API needs of the engine."""

    def submit(self, request: Request) -> None:
        """Queue a request. QueueFull or Unsupported."""

    def cancel(self, request: Request) -> None:
        """Drop a request."""


@dataclass(frozen=True)
class Piece:
    """What a step added. `reason` is the finish reason of the last piece; `logprobs` are empty when not asked for."""

    text: str
    tokens: tuple[int, ...]
    reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()


class Generation:
    """A submitted request and its answer so far."""

    def __init__(
        self, asked: GenerationRequest, room_limit: int, engine: Engine, tokenizer: Tokenizer, prefix: str
    ) -> None:
        prompt = tuple(tokenizer.encode(asked.prompt)) if isinstance(asked.prompt, str) else asked.prompt
        if not all(0 <= token < tokenizer.vocab_size for token in prompt):
            raise BadRequest(f"token ids must be below {tokenizer.vocab_size}", asked.prompt_field)
        room = room_limit - len(prompt)
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(prompt)} tokens, which leaves no room in {room_limit}",
                asked.prompt_field,
                code="context_length_exceeded",
            )
        if asked.max_tokens is not None and asked.max_tokens > room:
            raise BadRequest(
                f"max_tokens={asked.max_tokens} and a prompt of {len(prompt)} tokens exceed {room_limit}",
                "max_tokens",
                code="context_length_exceeded",
            )
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[list[int], str | None]] = asyncio.Queue()

        def emit(tokens: list[int], reason: str | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, (tokens, reason))

        self.id = f"{prefix}{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.prompt_tokens = len(prompt)
        self.completion_tokens = 0
        self.matched_stop: str | None = None
        seed = asked.seed if asked.seed is not None else secrets.randbelow(MAX_SEED + 1)
        self.sampling = Sampling(asked.temperature, asked.top_p, asked.top_k, seed)
        self.request = Request(
            prompt,
            asked.max_tokens or min(room, DEFAULT_MAX_TOKENS),
            asked.ignore_eos,
            emit,
            self.sampling,
            asked.top_logprobs,
        )
        self._begin = time.perf_counter()
        self._stop = asked.stop
        self._held = ""
        self._queue = queue
        self._engine = engine
        self._decoder = StreamDecoder(tokenizer)

    def start(self) -> None:
        """Hand it to the engine. BadRequest when the engine can not take it."""
        try:
            self._engine.submit(self.request)
        except QueueFull as error:
            raise BadRequest("the request queue is full, try again later", code="queue_full", status=429) from error
        except Unsupported as error:
            raise BadRequest(str(error), "temperature", code="unsupported_value") from error

    def cancel(self) -> None:
        """Drop it; without effect when it is finished."""
        self._engine.cancel(self.request)

    def seconds(self) -> float:
        """Since the request came."""
        return time.perf_counter() - self._begin

    async def next(self) -> Piece:
        """The next step's piece. BadRequest 503 when the engine ends."""
        tokens, reason = await self._queue.get()
        if reason == "abort":
            raise BadRequest("the engine is stopping", code="engine_stopping", status=503)
        first = self.completion_tokens
        self.completion_tokens += len(tokens)
        logprobs = tuple(self.request.logprobs[first : self.completion_tokens])
        text, reason = self._until_stop(self._decoder.feed(tokens, final=reason is not None), reason)
        return Piece(text, tuple(tokens), reason, logprobs)

    def _until_stop(self, text: str, reason: str | None) -> tuple[str, str | None]:
        """Text that may be sent: what could be the begin of a stop text is held back."""
        if not self._stop:
            return text, reason
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stop if stop in self._held]
        if found:
            place, self.matched_stop = min(found)
            self.cancel()
            return self._held[:place], "stop"
        keep = 0
        if reason is None:
            keep = max(
                size for stop in self._stop for size in range(len(stop)) if self._held.endswith(stop[:size])
            )  # size 0 always fits
        sent = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return sent, reason

    def usage(self) -> dict[str, object]:
        """OpenAI usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def metadata(self) -> dict[str, object]:
        """What a client needs to get the same answer again."""
        return {} if self.sampling.greedy else {"metadata": {"seed": self.sampling.seed}}

    def meta_info(self, reason: str | None, capped: bool) -> dict[str, object]:
        """meta_info of /generate."""
        counts = self.request.counts
        finish: dict[str, object] | None = None
        if reason == "length":
            finish = {"type": "length", "length": self.completion_tokens}
        elif reason is not None:
            finish = {"type": reason} if self.matched_stop is None else {"type": reason, "matched": self.matched_stop}
        info: dict[str, object] = {
            "id": self.id,
            "finish_reason": finish,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": 0,
            "e2e_latency": self.seconds(),
            "spec_accept_rate": counts.correct / counts.proposed if counts.proposed else 0.0,
            "spec_accept_length": self.completion_tokens / counts.verify_steps if counts.verify_steps else 0.0,
            "spec_num_correct_drafts": counts.correct,
            "spec_num_proposed_drafts": counts.proposed,
            "spec_verify_ct": counts.verify_steps,
            "spec_correct_drafts_histogram": _histogram(counts.histogram),
        }
        if not self.sampling.greedy:
            info["sampling_seed"] = self.sampling.seed
        if capped:
            live = sum(size * times for size, times in counts.cap_histogram.items())
            info["spec_cap_length"] = 1 + live / counts.verify_steps if counts.verify_steps else 0.0
            info["spec_cap_lens_histogram"] = _histogram(counts.cap_histogram)
        return info


def _histogram(counts: dict[int, int]) -> list[int]:
    return [counts.get(size, 0) for size in range(max(counts, default=-1) + 1)]

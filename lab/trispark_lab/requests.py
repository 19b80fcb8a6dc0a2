"""A generation request inside the engine, and where its tokens go."""

from collections.abc import Callable
from dataclasses import dataclass, field

Emit = Callable[[list[int], str | None], None]
"""Called with the tokens which a step committed; the last call has the finish reason: "stop", "length" or "abort"."""


@dataclass(eq=False)
class Request:
    """Greedy request. `prompt` is not empty; `output` holds what is committed; `computed` counts prompt ids done."""

    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    emit: Emit
    output: list[int] = field(default_factory=list)
    computed: int = 0
    cancelled: bool = False

    @property
    def reserved(self) -> int:
        """Token places that the request may use."""
        return len(self.prompt) + self.max_tokens

    @property
    def held(self) -> int:
        """Token places in use."""
        return self.computed + len(self.output)

    def last(self, count: int, end: int, pad: int) -> tuple[int, ...]:
        """The `count` ids before position `end` of prompt and output, padded at the front."""
        line = (*self.prompt, *self.output) if end > len(self.prompt) else self.prompt
        known = line[max(0, end - count) : end]
        return (pad,) * (count - len(known)) + tuple(known)

    def commit(self, tokens: list[int], eos: int) -> str | None:
        """Take verified tokens up to the end of the request; emits them. Gives the finish reason, if any."""
        taken: list[int] = []
        reason = None
        for token in tokens:
            taken.append(token)
            if token == eos and not self.ignore_eos:
                reason = "stop"
            elif len(self.output) + len(taken) >= self.max_tokens:
                reason = "length"
            if reason is not None:
                break
        self.output.extend(taken)
        self.emit(taken, reason)
        return reason

"""Shapes of the answers of the three generating endpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from . import tools as markup
from .api_generation import Generation, Piece
from .api_schema import GenerationRequest
from .requests import TokenLogprob
from .tokenizer import Tokenizer

Document = dict[str, object]


@dataclass
class Answer:
    """What came so far."""

    generation: Generation
    asked: GenerationRequest
    model: str
    tokenizer: Tokenizer
    capped: bool
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: str | None = None

    def add(self, piece: Piece) -> None:
        """Take a piece."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.reason = piece.reason

    def envelope(self, kind: str, choices: list[Document]) -> Document:
        """Fields around OpenAI choices."""
        generation = self.generation
        return {
            "id": generation.id,
            "object": kind,
            "created": generation.created,
            "model": self.model,
            "choices": choices,
        }


class Style(Protocol):
    """How one endpoint answers."""

    prefix: str

    def whole(self, answer: Answer) -> Document:
        """The answer in one document."""

    def piece(self, answer: Answer, piece: Piece, first: bool) -> Document | None:
        """The event of a piece which was added to `answer`; None for no event."""

    def last(self, answer: Answer) -> Document | None:
        """The event that tells the finish reason; None when `piece` told it."""


class Chat:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"

    def whole(self, answer: Answer) -> Document:
        message, reason = self._message(answer)
        choice: Document = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        if answer.asked.top_logprobs is not None:
            choice["logprobs"] = self._logprobs(answer, answer.logprobs)
        return {
            **answer.envelope("chat.completion", [choice]),
            "usage": answer.generation.usage(),
            **answer.generation.metadata(),
        }

    def piece(self, answer: Answer, piece: Piece, first: bool) -> Document | None:
        if answer.asked.tools or not (first or piece.text or piece.logprobs):
            return None  # whether it is a call is known at the end
        delta: Document = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
        choice: Document = {"index": 0, "delta": delta, "finish_reason": None}
        if answer.asked.top_logprobs is not None:
            choice["logprobs"] = self._logprobs(answer, piece.logprobs)
        return answer.envelope("chat.completion.chunk", [choice])

    def last(self, answer: Answer) -> Document | None:
        message, reason = self._message(answer) if answer.asked.tools else ({}, answer.reason)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choice: Document = {"index": 0, "delta": message, "finish_reason": reason}
        return {**answer.envelope("chat.completion.chunk", [choice]), **answer.generation.metadata()}

    def _message(self, answer: Answer) -> tuple[Document, str | None]:
        call = markup.find_call(answer.text, answer.asked.tools) if answer.reason == "stop" else None
        if call is None:
            return {"role": "assistant", "content": answer.text}, answer.reason
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"

    def _logprobs(self, answer: Answer, entries: Sequence[TokenLogprob]) -> Document:
        def token(number: int, logprob: float) -> Document:
            data = answer.tokenizer.token_bytes(number)
            return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

        content = [
            {**token(entry.token, entry.logprob), "top_logprobs": [token(*other) for other in entry.top]}
            for entry in entries
        ]
        return {"content": content}


class Completion:
    """/v1/completions."""

    prefix = "cmpl-"

    def whole(self, answer: Answer) -> Document:
        choice = self._choice(answer, answer.text, answer.logprobs, answer.reason, 0)
        return {
            **answer.envelope("text_completion", [choice]),
            "usage": answer.generation.usage(),
            **answer.generation.metadata(),
        }

    def piece(self, answer: Answer, piece: Piece, first: bool) -> Document | None:
        if not (piece.text or piece.logprobs):
            return None
        offset = len(answer.text) - len(piece.text)
        return answer.envelope("text_completion", [self._choice(answer, piece.text, piece.logprobs, None, offset)])

    def last(self, answer: Answer) -> Document | None:
        choice = self._choice(answer, "", (), answer.reason, len(answer.text))
        return {**answer.envelope("text_completion", [choice]), **answer.generation.metadata()}

    @staticmethod
    def _choice(
        answer: Answer, text: str, entries: Sequence[TokenLogprob], reason: str | None, offset: int
    ) -> Document:
        choice: Document = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        if answer.asked.top_logprobs is not None:
            decode = answer.tokenizer.decode
            offsets = []
            for entry in entries:
                offsets.append(offset)
                offset += len(decode([entry.token]))
            choice["logprobs"] = {
                "tokens": [decode([entry.token]) for entry in entries],
                "token_logprobs": [entry.logprob for entry in entries],
                "top_logprobs": [{decode([token]): logprob for token, logprob in entry.top} for entry in entries],
                "text_offset": offsets,
            }
        return choice


class Generate:
    """/generate: text so far and meta_info, in each event."""

    prefix = ""

    def whole(self, answer: Answer) -> Document:
        info = answer.generation.meta_info(answer.reason, answer.capped)
        if answer.asked.top_logprobs is not None:
            info["output_token_logprobs"] = [[entry.logprob, entry.token, None] for entry in answer.logprobs]
            info["output_top_logprobs"] = [
                [[logprob, token, None] for token, logprob in entry.top] for entry in answer.logprobs
            ]
        return {"text": answer.text, "output_ids": answer.tokens, "meta_info": info}

    def piece(self, answer: Answer, piece: Piece, first: bool) -> Document | None:
        return self.whole(answer)

    def last(self, answer: Answer) -> Document | None:
        return None

"""A server (aiohttp) with a switch of three ranks, as the lab engine has it, which can be spoiled after some orders."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class Engine:
    """A server with a switch, which can be spoiled after so many orders, `at`."""

    def __init__(self, fault: str = "", at: int = 9, name: str = "x") -> None:
        self.name = name
        self.on = self.declared = True
        self.epoch = 40
        self.fault, self.at = fault, at
        self.orders: list[bool] = []
        self.holds: list[float] = []
        self.tokens = self.requests = 0
        self.prompts: list[str] = []

    @property
    def _now(self) -> str:
        """Once: afterwards, above all on the way back, it is sound again."""
        return self.fault if len(self.orders) == self.at else ""

    @property
    def _other(self) -> bool:
        """Once, or from `at` on whenever the switch is on."""
        return self._now == "other text" or (self.fault == "switched text" and len(self.orders) >= self.at and self.on)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/lab/switches", self._switches)
        app.router.add_post("/lab/switch", self._switch)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _info(self, _request: web.Request) -> web.Response:
        state = (
            {}
            if self._now == "silent counters"
            else {"generation_tokens": self.tokens, "finished_requests": self.requests}
        )
        return web.json_response({"startup_time": 3.5, "version": "1", "internal_states": [state]})

    async def _switches(self, _request: web.Request) -> web.Response:
        on = not self.on if self._now == "turned" else self.on
        epoch = self.epoch + (self._now == "other epoch")
        return web.json_response({"switches": {self.name: {"on": on, "declared": self.declared, "epoch": epoch}}})

    async def _switch(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert set(body) == {"name", "on", "hold_s"}
        self.orders.append(body["on"])
        self.holds.append(body["hold_s"])
        self.on = body["on"]
        self.epoch += self._now != "same epoch"
        acks = [{"rank": rank, "epoch": self.epoch, "on": self.on, "refused": False} for rank in range(3)]
        status, agreed = 200, True
        if self._now == "rank missing":
            acks.pop()
        elif self._now == "older epoch":
            acks[1]["epoch"] -= 1
        elif self._now == "refused":
            acks[2] |= {"on": not self.on, "refused": True}
            status, agreed = 409, False
        elif self._now == "no acks":
            return web.json_response({"epoch": self.epoch})
        elif self._now == "gone":
            return web.json_response({"error": {"message": "the engine is ending"}}, status=503)
        return web.json_response(
            {"name": self.name, "on": self.on, "epoch": self.epoch, "agreed": agreed, "acknowledged": acks},
            status=status,
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.prompts.append(body["messages"][0]["content"])
        self.requests += 1 + (self._now == "foreign")
        count = body["max_tokens"]
        self.tokens += count
        if self._now == "failing":
            return web.Response(status=500)
        return await _stream(request, ["x"] * (count - 1) + ["y" if self._other else "x"])


async def _stream(request: web.Request, texts: list[str]) -> web.StreamResponse:
    """One token an event, with continuous usage."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for place, text in enumerate(texts):
        usage = {"completion_tokens": place + 1, "prompt_tokens": 1}
        await _send(response, {"choices": [{"delta": {"content": text}}], "usage": usage})
    await _send(response, {"choices": [], "usage": {"completion_tokens": len(texts), "prompt_tokens": 1}})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, document: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(document)}\n\n".encode())

"""`python3 -m trispark_bench.truth.line_reader URL WIDTH ROUNDS`: the usual way to read a stream, for comparison.

aiohttp, a line at a time, stamped when the reader's task gets it; requests of a round are started by `gather`.
One JSON row a request on its output.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

import aiohttp

from trispark_bench.truth.schedule import MODEL


async def one(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """{id, ttft_s, gaps_s, tokens, error} of one request."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = time.perf_counter()
    at: list[float] = []
    row: dict[str, Any] = {"id": None, "ttft_s": None, "gaps_s": None, "tokens": None, "error": None}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            return {**row, "error": f"HTTP {response.status}"}
        async for raw in response.content:
            line = raw.strip()
            if not line.startswith(b"data:") or line.endswith(b"[DONE]"):
                continue
            event = json.loads(line[5:])
            row["id"] = row["id"] or event.get("id")
            row["tokens"] = (event.get("usage") or {}).get("completion_tokens", row["tokens"])
            for choice in event.get("choices", []):
                if choice["delta"].get("content") or choice["delta"].get("reasoning_content"):
                    at.append(time.perf_counter())
    if at:
        row["ttft_s"] = at[0] - sent
        row["gaps_s"] = [later - earlier for earlier, later in itertools.pairwise(at)]
    return row


async def main(url: str, width: int, rounds: int) -> None:
    """`rounds` times `width` requests."""
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(rounds):
            for row in await asyncio.gather(*(one(session, url) for _ in range(width))):
                print(json.dumps(row))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

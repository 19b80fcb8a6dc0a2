"""Debian's Chromium without a window, driven over the DevTools protocol: one page, its errors and its requests."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser")
START_S = 60.0
ANSWER_S = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """The program, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page. `errors`: of its console and of scripts; `requests`: addresses that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._ids = itertools.count(1)
        self._events: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol. Events that come meanwhile are kept."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])

    async def open(self, address: str) -> None:
        """Load a page and wait for its end."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        self._events.clear()
        await self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            await self._next()

    async def value(self, script: str) -> Any:
        """What an expression gives, as JSON."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def window(self, width: int, height: int = 900, *, dark: bool = False, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, target: Path) -> None:
        """The whole page as PNG."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(found["data"]))

    async def press(self, key: str, code: int) -> None:
        written = {"text": "\r"} if key == "Enter" else {}
        for kind, text in (("keyDown", written), ("keyUp", {})):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await asyncio.wait_for(self._socket.receive_json(), ANSWER_S)
        method, parameters = message.get("method"), message.get("params", {})
        if method is not None:
            self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.errors.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(str(parameters["args"]))
        return message


@asynccontextmanager
async def tab(program: str, profile: Path) -> AsyncIterator[Tab]:
    """A fresh browser with one page; it is ended with its children. `profile`: a directory that is not there yet."""
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        port = await asyncio.wait_for(_port(process.stderr), START_S)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                found = Tab(socket)
                yield found
                # The browser itself ends: its children go with it.
                await socket.send_json({"id": 0, "method": "Browser.close"})
                await asyncio.wait_for(process.wait(), START_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _port(stream: asyncio.StreamReader) -> int:
    """What the browser says that it listens on."""
    async for line in stream:
        text = line.decode("utf-8", "replace")
        if "DevTools listening on ws://" in text:
            return int(text.split("ws://")[1].split("/")[0].rsplit(":", 1)[1])
    raise AssertionError("the browser ended before it listened")

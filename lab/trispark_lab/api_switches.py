"""`/lab/switches` and `/lab/switch`: what a running engine can turn, for who administers it."""

import asyncio
import ipaddress
import json
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from aiohttp import web

from .api_fields import BadRequest, flag, json_object, number
from .api_key import authorised
from .errors import EngineError
from .switches import MAX_HOLD_S, Turned

HOLD_S = 60.0


@dataclass(frozen=True)
class Administration:
    """What the API needs of the engine. `state`: {switch: {on, declared, epoch}}; `turn(name, on, hold_s)` orders it at
    the next boundary between two steps."""

    state: Callable[[], dict[str, dict[str, object]]]
    turn: Callable[[str, bool, float], Future[object]]


def require_administrator(request: web.Request, key: str | None) -> None:
    """With a key of the API who has it; without one who is on this host. BadRequest for all others."""
    if key is not None:
        if not authorised(request.headers.get("Authorization"), key):
            raise BadRequest("send the API key as a bearer token", code="invalid_api_key", status=401)
        return
    try:
        local = ipaddress.ip_address((request.remote or "").partition("%")[0]).is_loopback
    except ValueError:
        local = False
    if not local:
        raise BadRequest(
            "an engine without an API key is administered from its own host alone", code="not_local", status=403
        )


async def answer_state(administration: Administration | None) -> web.Response:
    """Switches of this engine; none where it has none or is not ready."""
    return web.json_response({"switches": administration.state() if administration is not None else {}})


async def answer_turn(request: web.Request, administration: Administration | None) -> web.Response:
    """Turn one: 200 when every rank is in the wanted state, 409 with what each rank said when not."""
    try:
        body = json_object(json.loads(await request.read()))
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not JSON") from error
    name, hold_s = body.get("name"), number(body, "hold_s", HOLD_S, 0.1, MAX_HOLD_S)
    if surplus := sorted(set(body) - {"name", "on", "hold_s"}):
        raise BadRequest(f"{surplus[0]} is no field of an order", surplus[0])
    if "on" not in body or body["on"] is None:
        raise BadRequest("on is needed, true or false", "on")
    if administration is None:
        raise BadRequest("the engine is not ready", code="engine_not_ready", status=503)
    known = administration.state()
    if not isinstance(name, str) or name not in known:
        has = ", ".join(sorted(known)) or "none"
        raise BadRequest(f"{name!r} is no switch of this engine; it has {has}", "name", code="no_switch", status=404)
    try:
        turned = await asyncio.wrap_future(administration.turn(name, flag(body, "on"), hold_s))
    except EngineError as error:
        raise BadRequest(str(error), code=error.error_id, status=503) from error
    except (CancelledError, asyncio.CancelledError):
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # the client went away
        raise BadRequest("the engine is ending", code="engine_not_ready", status=503) from None
    assert isinstance(turned, Turned)
    return web.json_response(turned.as_json(), status=200 if turned.agreed else 409)

"""What an installer does with an engine's module: look symbols up, and replace them once.

An engine that lacks what an adapter patches is refused by build, module and symbol; nothing is guessed.
"""

import inspect
import os
from collections.abc import Callable
from importlib import metadata
from typing import Any

from .switches import HookError

MARK = "__trispark_adapters__"
"""Attribute of a replacement: names of the adapters that stand in front of the engine's own function."""


def build() -> str:
    """The engine's build: DSV41_ENGINE_BUILD where the image says it, else the version of the installed package."""
    if said := os.environ.get("DSV41_ENGINE_BUILD", ""):
        return said
    try:
        return f"sglang {metadata.version('sglang')}"
    except metadata.PackageNotFoundError:
        return "sglang of unknown version"


def symbol(owner: Any, path: str) -> Any:
    """`path` ("Class.method") below a module or class; HookError TS-ADAPTER-SYMBOL when it is not there."""
    found = owner
    for name in path.split("."):
        if not hasattr(found, name):
            raise HookError(
                f"TS-ADAPTER-SYMBOL: the engine lacks a symbol [where: {build()}, {_name(owner)}] "
                f"expected: {path}; observed: no {name}; "
                "remedy: ./trispark adapters check names the builds that this adapter binds to"
            )
        found = getattr(found, name)
    return found


def require_parameters(function: Callable[..., Any], *names: str) -> None:
    """HookError TS-ADAPTER-SIGNATURE when `function` does not take the parameters `names`."""
    if not names:
        return  # what has no signature can be needed too
    have = inspect.signature(inspect.unwrap(function)).parameters
    missing = [name for name in names if name not in have]
    if missing:
        raise HookError(
            f"TS-ADAPTER-SIGNATURE: a function of the engine takes other parameters "
            f"[where: {build()}, {getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}] "
            f"expected: {', '.join(names)}; observed: no {', '.join(missing)}; "
            "remedy: ./trispark adapters check names the builds that this adapter binds to"
        )


def replace(owner: Any, path: str, adapter: str, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(original)` in the place of `path` below `owner`, once for each adapter.

    Wrappers take `*args, **kwargs`: later builds pass more. A classmethod or staticmethod stays one: `wrap` gets the
    plain function, whose first argument is then the class, or nothing.
    """
    *parents, name = path.split(".")
    holder = symbol(owner, ".".join(parents)) if parents else owner
    symbol(holder, name)
    raw = inspect.getattr_static(holder, name)
    kind = type(raw) if isinstance(raw, classmethod | staticmethod) else None
    original = raw.__func__ if kind is not None else raw
    before: tuple[str, ...] = getattr(original, MARK, ())
    if adapter in before:
        return
    replacement = wrap(original)
    setattr(replacement, MARK, (*before, adapter))
    replacement.__wrapped__ = original  # a decorator, such as contextmanager, points at the wrapper's own body
    setattr(holder, name, kind(replacement) if kind is not None else replacement)


def _name(owner: Any) -> str:
    module = getattr(owner, "__module__", None)
    own = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
    return f"{module}.{own}" if module else str(own)

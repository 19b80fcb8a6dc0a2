"""What each adapter needs of the engine, read from needs.json, and whether a module that was just executed has it.

The same data is checked without importing anything by `./trispark adapters check`. Of each adapter the file holds
`needs`, `any` (groups of needs of which one must hold) and `native`: where those hold, the engine has the mechanism
itself and the needs do not count. A need names a module, a symbol below it ("Class.method"), parameters that it must
take, and attributes that instances of a class must set, which only the static check can see.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from .binding import require_parameters, symbol
from .switches import HookError

FILE: Final = Path(__file__).with_name("needs.json")

Need = dict[str, Any]


@cache
def adapters() -> dict[str, dict[str, Any]]:
    """{adapter: its entry}. HookError TS-ADAPTER-NEEDS when the file is not there or damaged."""
    try:
        found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["adapters"]
    except (OSError, ValueError, KeyError) as error:
        raise HookError(
            f"TS-ADAPTER-NEEDS: what the adapters need cannot be read [where: {FILE.name}] expected: the file of this "
            f"version; observed: {type(error).__name__}: {error}; remedy: stage the generation again"
        ) from None
    return found


def require(module: ModuleType, adapter: str) -> None:
    """HookError TS-ADAPTER-SYMBOL or TS-ADAPTER-SIGNATURE for the first thing that `adapter` needs of `module` and that
    is not there. An adapter without an entry needs nothing; of other modules nothing is said here."""
    entry = adapters().get(adapter, {})
    native = _of(module, entry.get("native", ()))
    if native and _unmet(module, native) is None:
        return
    if (unmet := _unmet(module, _of(module, entry.get("needs", ())))) is not None:
        raise unmet
    for groups in entry.get("any", ()):
        failed = [_unmet(module, _of(module, group)) for group in groups]
        first = next(iter(failed), None)
        if first is not None and None not in failed:
            raise first


def _of(module: ModuleType, needs: Iterable[Need]) -> list[Need]:
    return [need for need in needs if need["module"] == module.__name__]


def _unmet(module: ModuleType, needs: Sequence[Need]) -> HookError | None:
    for need in needs:
        try:
            if name := need.get("symbol"):
                require_parameters(symbol(module, name), *need.get("parameters", ()))
        except HookError as error:
            return error
    return None

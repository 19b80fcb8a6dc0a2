"""Whether adapters bind for real: a release's modules are imported with their hooks on, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trispark.engine_api.environment import EngineEnvironment
from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine

SCRIPT: Final = Path(__file__).with_name("import_check.py")
IMPORT_S: Final = 300


def import_release(
    environment: EngineEnvironment, release: str, adapters: Sequence[str], machine: Machine | None = None
) -> dict[str, str]:
    """{adapter: why it did not bind} of `adapters` on the release; empty when all bind.

    Raises TS-ADAPTERS-IMPORT when the process ends without an answer.
    """
    environ = environment.environ(release, environment.root / "adapters")
    argv = ["env", "-i", *(f"{name}={value}" for name, value in environ.items())]
    done = (machine or LocalMachine()).run([*argv, str(environment.python), str(SCRIPT), *adapters], timeout_s=IMPORT_S)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        refused, bound = answer["refused"], answer["bound"]
    except (IndexError, ValueError, KeyError):
        raise TrisparkError(
            "TS-ADAPTERS-IMPORT",
            "the engine's modules could not be imported with the adapters",
            where=f"sglang=={release}",
            expected="an answer from the process that imports them",
            observed=done.last_line,
            remedy="run it by hand: docs/adapters.md has the command",
        ) from None
    silent = {
        name: "none of its hooks was installed" for name in adapters if not bound.get(name) and name not in refused
    }
    return {**silent, **refused}

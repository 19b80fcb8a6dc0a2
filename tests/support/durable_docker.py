"""A fake Docker Engine that outlives the process which asks it, as the real one does: its state is a file."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KEPT = ("images", "containers", "logs", "configs", "events")


def durable(base: type, path: Path, effect: Callable[[], None]) -> Any:
    """An engine of class `base` (conftest.FakeDocker) whose state is `path`, written after each effect. `effect` is
    called before each effect and once more before the effect is acknowledged."""

    class Durable(base):  # type: ignore[misc]
        def _do(self, name: str, *arguments: Any) -> Any:
            effect()
            answer = getattr(base, name)(self, *arguments)
            self.store()
            effect()
            return answer

        def store(self) -> None:
            path.write_bytes(pickle.dumps({name: getattr(self, name) for name in KEPT}))

        def load(self) -> Durable:
            for name, value in pickle.loads(path.read_bytes()).items():
                setattr(self, name, value)
            return self

        def create(self, name: str, config: Mapping[str, Any]) -> str:
            return str(self._do("create", name, config))

        def start(self, container_id: str) -> None:
            self._do("start", container_id)

        def signal(self, container_id: str, signal: str) -> None:
            self._do("signal", container_id, signal)

        def unpause(self, container_id: str) -> None:
            self._do("unpause", container_id)

        def remove(self, container_id: str) -> None:
            self._do("remove", container_id)

        def pull(self, repository: str, digest: str) -> None:
            self._do("pull", repository, digest)

        def remove_image(self, reference: str) -> None:
            self._do("remove_image", reference)

    return Durable()

"""Base images: what the Engine does not hold after an import or a pull is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import docker.errors
import pytest

from trispark.errors import TrisparkError
from trispark.lab import bases
from trispark.lab.bases import NAMES, Recipe, ensure_bases, reference
from trispark.lab.engine_api import EngineApi
from trispark.lab.layout import Paths, root_id

RECIPES = {name: Recipe(name, "0123456789ab", "bookworm", "", ()) for name in NAMES}


class Engine:
    """Holds images by name; an import that `forgets` makes none."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.held: set[str] = set()
        self.imported: list[str] = []
        self._forgets = forgets

    def inspect_image(self, image: str) -> dict[str, Any]:
        if image not in self.held:
            raise docker.errors.ImageNotFound("no such image")
        return {"Id": image}

    def import_image_from_file(self, filename: str, *, repository: str, tag: str, changes: Sequence[str]) -> str:
        self.imported.append(filename)
        if not self._forgets:
            self.held.add(f"{repository}:{tag}")
        return ""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv(bases.MODE_VARIABLE, "bootstrap")
    found = Paths(tmp_path)
    found.cache.mkdir(parents=True)
    for name in NAMES:
        (found.cache / f"{name}-{RECIPES[name].key}.tar").touch()
    return found


def ensure(paths: Paths, engine: Engine) -> dict[str, str]:
    return ensure_bases(paths, cast(EngineApi, engine), RECIPES, lambda _: None)


def test_what_is_missing_is_imported_once(paths: Paths) -> None:
    engine = Engine()
    found = ensure(paths, engine)
    assert found == {name: reference(RECIPES[name], root_id(paths.repo)) for name in NAMES}
    assert len(engine.imported) == len(NAMES)
    assert ensure(paths, engine) == found
    assert len(engine.imported) == len(NAMES)


def test_an_import_after_which_there_is_no_image_is_named(paths: Paths) -> None:
    with pytest.raises(TrisparkError) as caught:
        ensure(paths, Engine(forgets=True))
    assert caught.value.id == "TS-LAB-BASE"
    assert caught.value.where.endswith(".tar")


def test_a_mode_that_is_not_understood_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bases.MODE_VARIABLE, "sometimes")
    with pytest.raises(TrisparkError) as caught:
        ensure(paths, Engine())
    assert (caught.value.id, caught.value.observed) == ("TS-LAB-BASE", "sometimes")

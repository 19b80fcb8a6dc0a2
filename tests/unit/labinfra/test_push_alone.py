"""A push and a build of one checkout share a store of blobs, and each clears it when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.lab import push as module
from trispark.lab.layout import Paths


def test_a_push_during_a_build_waits_and_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(tmp_path)
    paths.cache.mkdir(parents=True)
    engine: Any = None
    with module.writing(paths, lambda _: None):
        monkeypatch.setattr(module, "WAIT_S", 0)
        with pytest.raises(TrisparkError) as caught:
            module.push(tmp_path, engine, ["bench"])
    assert caught.value.id == "TS-LAB-BUSY"

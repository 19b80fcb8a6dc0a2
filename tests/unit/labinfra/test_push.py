"""What `lab up` pushes: only what is named, under its own tag, by one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.lab import push as pushing
from trispark.lab.layout import Paths
from trispark.lab.prepared import Image, Prepared, save_prepared


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    for directory in ("checkpoint", "context"):
        (tmp_path / directory).mkdir()
    (tmp_path / "agent").touch()
    paths.cache.mkdir(parents=True)
    paths.prepared.parent.mkdir(parents=True, exist_ok=True)
    context = str(tmp_path / "context")
    images = {
        "lab-node": Image("lab-node", "trispark/lab-node:t", "c", context, "base", False),
        "bench": Image("bench", "127.77.0.2:5000/trispark/bench:t", "c", context, "base", True),
    }
    agent = str(tmp_path / "agent")
    save_prepared(paths.prepared, Prepared(images, {}, str(tmp_path / "checkpoint"), agent, "0" * 64, "k"))
    return paths


class NoEngine:
    """Nothing may be asked of it."""


@pytest.mark.parametrize("name", ["lab-node", "unknown"])
def test_what_is_not_pushed_or_not_there_is_refused_by_name(paths: Paths, name: str) -> None:
    with pytest.raises(TrisparkError) as refused:
        pushing.push(paths.repo, NoEngine(), ["bench", name])  # type: ignore[arg-type]
    assert (refused.value.id, refused.value.observed, refused.value.expected) == ("TS-IMAGES-NAME", name, "bench")


def test_a_second_writer_of_the_store_waits_and_then_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ends removes the blobs of no one; those of a push that still goes on would be among them."""
    monkeypatch.setattr(pushing, "STORE_WAIT_S", 0.0)
    said: list[str] = []
    with (
        pushing.only_writer(paths, said.append),
        pytest.raises(TrisparkError) as refused,
        pushing.only_writer(paths, said.append),
    ):
        pytest.fail("two writers")
    assert refused.value.id == "TS-LAB-BUSY"
    assert "build of images" in said[0]
    with pushing.only_writer(paths, said.append) as store:
        assert store.images() == {}

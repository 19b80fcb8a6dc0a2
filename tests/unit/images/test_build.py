"""A build and an export that fail: each named, and nothing of half an image in the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from trispark.errors import TrisparkError
from trispark.images.build import Context, build, export
from trispark.images.oci import BlobStore

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Engine:
    """Says these steps of a build, or gives these pieces of an archive; what is an exception is raised there."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.asked: dict[str, Any] = {}

    def _said(self) -> Iterator[Any]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    def build(self, **asked: Any) -> Iterator[dict[str, Any]]:
        self.asked = asked
        return self._said()

    def get_image(self, image: str) -> Iterator[bytes]:
        return self._said()


def refused(call: Callable[[], Any]) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (({"stream": "Step 1/2 : FROM base"}, {"error": "manifest for base not found"}), "manifest for base not found"),
        (({"stream": "Step 2/2 : RUN x"}, {"error": "returned a\nnon-zero code"}), "(after: Step 2/2 : RUN x)"),
        ((docker.errors.APIError("no such image"),), "no such image"),
        (({"stream": "Step 1/2"}, ConnectionResetError(104, "Connection reset by peer")), "Connection reset by peer"),
        ((FULL,), "No space left on device"),
    ],
)
def test_a_build_that_fails_says_where_and_why(tmp_path: Path, parts: tuple[Any, ...], said: str) -> None:
    engine = Engine(*parts)
    error = refused(lambda: build(engine, Context(tmp_path, "base"), "x:1", labels={}))
    assert (error.id, error.where) == ("TS-IMAGES-BUILD", str(tmp_path / "Dockerfile"))
    assert said in error.observed


def test_a_build_has_no_network_and_pulls_nothing(tmp_path: Path) -> None:
    engine = Engine({"stream": "Successfully built"})
    build(engine, Context(tmp_path, "base@sha256:1"), "x:1", labels={}, cached=False)
    asked = engine.asked
    assert (asked["network_mode"], asked["pull"], asked["nocache"]) == ("none", False, True)
    assert asked["buildargs"] == {"BASE": "base@sha256:1"}


@pytest.mark.parametrize(
    "parts",
    [(docker.errors.ImageNotFound("no such image"),), (b"x" * 512, FULL), (b"cut off" * 200,), ()],
    ids=["gone", "full", "cut-off", "empty"],
)
def test_an_export_that_fails_leaves_nothing(tmp_path: Path, parts: tuple[Any, ...]) -> None:
    store = BlobStore(tmp_path / "store")
    error = refused(lambda: export(Engine(*parts), "x:1", store, labels={}))
    assert error.id == "TS-IMAGES-ARCHIVE"
    assert str(store.root) in error.where
    assert [path for path in store.root.rglob("*") if path.is_file()] == []

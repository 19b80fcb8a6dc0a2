"""Builds an image from its context with this machine's Docker Engine, and makes one digest of one content of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import docker.errors

from trispark.errors import TrisparkError
from trispark.images.oci import BlobStore, OciImage, from_engine

BUILD_DEADLINE_S: Final = 900


class BuildEngine(Protocol):
    """The part of docker.APIClient that builds and saves."""

    def build(
        self,
        *,
        path: str,
        tag: str,
        buildargs: Mapping[str, str],
        labels: Mapping[str, str],
        network_mode: str,
        nocache: bool,
        pull: bool,
        rm: bool,
        forcerm: bool,
        decode: bool,
        timeout: int,
    ) -> Iterator[dict[str, Any]]: ...

    def get_image(self, image: str) -> Iterable[bytes]: ...


@dataclass(frozen=True)
class Context:
    """What an image is built of: `path` holds a Dockerfile, `base` is its argument BASE."""

    path: Path
    base: str


def build(
    engine: BuildEngine, context: Context, reference: str, *, labels: Mapping[str, str], cached: bool = True
) -> None:
    """Build `reference` without a network. `labels` are those of the Engine's own copy. Raises TS-IMAGES-BUILD."""
    last = ""
    try:
        for step in engine.build(
            path=str(context.path),
            tag=reference,
            buildargs={"BASE": context.base},
            labels=labels,
            network_mode="none",
            nocache=not cached,
            pull=False,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=BUILD_DEADLINE_S,
        ):
            last = str(step.get("stream", last)).strip() or last
            if "error" in step:
                raise _failed(context, f"{step['error']} (after: {last})")
    except (docker.errors.DockerException, OSError) as error:  # OSError: a full disk, an Engine that went away
        raise _failed(context, str(error)) from error


def export(engine: BuildEngine, reference: str, store: BlobStore, *, labels: Mapping[str, str]) -> OciImage:
    """The built image in `store`. `labels`: all that it has, the same wherever it is built.

    Raises TS-IMAGES-ARCHIVE, also for a disk that is full; the store has nothing of half an image then.
    """
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=store.root, prefix=".partial-save-") as archive:
            for chunk in engine.get_image(reference):
                archive.write(chunk)
            archive.flush()
            return from_engine(Path(archive.name), store, labels=labels)
    except (docker.errors.DockerException, OSError) as error:
        raise TrisparkError(
            "TS-IMAGES-ARCHIVE",
            "a built image could not be taken from the Docker Engine",
            where=f"{reference}, into {store.root}",
            expected="the image as an archive, and room for it twice",
            observed=str(error),
            remedy="make room there, or see the log of the Docker Engine; then run the same command again",
        ) from error


def _failed(context: Context, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-BUILD",
        "an image could not be built",
        where=str(context.path / "Dockerfile"),
        expected="every step ends well, without a network",
        observed=" ".join(observed.split())[:500],
        remedy="mend the step that is named; a base that is missing is made by ./trispark lab up",
    )

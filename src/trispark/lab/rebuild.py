"""Builds images of the lab beside those that it uses, to see that the same sources give the same digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import docker.errors

from trispark.errors import TrisparkError
from trispark.host import Say
from trispark.images.build import Context, build
from trispark.images.oci import BlobStore, OciImage
from trispark.lab.built import describe
from trispark.lab.engine_api import Engine
from trispark.lab.layout import LABEL_CONTENT, LABEL_IMAGE, LABEL_ROOT, Paths, root_id
from trispark.lab.prepare import prepare
from trispark.lab.prepared import BUILD_ORDER, Image, Prepared, load_prepared
from trispark.lab.push import exported_image, only_writer
from trispark.lab.registry import digest_of

AGAIN: Final = "-again"
"""Behind the tag of what is built without a cache; removed when it has its digest."""


@dataclass(frozen=True)
class Built:
    """`registry`: the digest that the lab's registry has for these sources, empty where it has none."""

    name: str
    digest: str
    config: str
    registry: str

    @property
    def differs(self) -> bool:
        return self.registry not in ("", self.digest)

    @property
    def compared(self) -> str:
        if not self.registry:
            return ""
        return f"  NOT that of the registry, {self.registry}" if self.differs else "  as in the registry"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differs": self.differs}


def rebuild(repo: Path, engine: Engine, names: Sequence[str], say: Say, *, cached: bool) -> list[Built]:
    """Build `names` (none: all) and what they stand on. Raises TS-IMAGES-NAME, TS-IMAGES-BUILD, TS-IMAGES-ARCHIVE."""
    prepare(repo, say, engine)
    paths = Paths(repo.resolve())
    prepared = load_prepared(paths.prepared)
    unknown = [name for name in names if name not in BUILD_ORDER]
    if unknown:
        raise TrisparkError(
            "TS-IMAGES-NAME",
            "the lab has no such image",
            where=unknown[0],
            expected=", ".join(BUILD_ORDER),
            observed=unknown[0],
            remedy="name one of these",
        )
    wanted = tuple(names) or BUILD_ORDER
    with only_writer(paths, say) as store:
        return list(_built(paths, engine, prepared, wanted, say, store, cached=cached))


def _built(
    paths: Paths,
    engine: Engine,
    prepared: Prepared,
    wanted: Sequence[str],
    say: Say,
    store: BlobStore,
    *,
    cached: bool,
) -> Iterator[Built]:
    exported: dict[str, OciImage] = {}
    by_reference = {image.reference: image for image in prepared.images.values()}
    needed = {name for name in wanted} | {
        by_reference[prepared.images[name].base].name for name in wanted if prepared.images[name].base in by_reference
    }
    suffix = "" if cached else AGAIN
    with _removed(engine, [f"{prepared.images[name].reference}{AGAIN}" for name in needed] if not cached else []):
        for name in (each for each in BUILD_ORDER if each in needed):
            image = prepared.images[name]
            base = image.base + (suffix if image.base in by_reference else "")
            say(f"building {name}")
            build(
                engine,
                Context(Path(image.context), base),
                image.reference + suffix,
                labels=_labels(paths, image),
                cached=cached,
            )
            if name in wanted:
                made = exported_image(engine, image, store, suffix)
                digest = ""
                if image.pushed:
                    digest = digest_of(image.reference)
                    describe(paths, prepared, image, made, store)
                    exported[name] = made
                yield Built(name, made.manifest.digest, made.config.digest, digest)
    store.keep({**store.images(), **exported}, [each.name for each in prepared.images.values() if each.pushed])


def _labels(paths: Paths, image: Image) -> dict[str, str]:
    return {LABEL_IMAGE: "1", LABEL_ROOT: root_id(paths.repo), LABEL_CONTENT: image.content}


@contextmanager
def _removed(engine: Engine, references: Sequence[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for reference in reversed(references):
            try:
                engine.remove_image(reference, force=False)
            except docker.errors.ImageNotFound:
                continue

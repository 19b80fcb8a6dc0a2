"""Build contexts and content hashes of the lab's images; the playbook builds what the engine has not yet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from trispark.errors import TrisparkError
from trispark.images.layers import EPOCH
from trispark.lab.files import hash_files, make_directory, prune, source_files
from trispark.lab.layout import PUSH_REGISTRY, Paths, root_id
from trispark.lab.prepared import Image

FORMAT: Final = f"1:{EPOCH}"
"""Of what an image is made into after its build; another one needs another tag."""
ENGINE_BUILDS: Final = {"lab-engine": "stock", "lab-engine-canary": "canary"}
"""Image -> what the engine in it calls its build: two images that differ, for trials of images."""


@dataclass(frozen=True)
class Base:
    """What an image is built on: its name in this machine's Engine, and the hash of what it is made of."""

    reference: str
    content: str


def ensure_contexts(paths: Paths, bases: dict[str, Base], site_packages: Path) -> dict[str, Image]:
    """The images in build order: the node, the shared packages, and those on top of them."""
    repo = paths.repo
    node = _image(paths, "lab-node", bases["lab-node"], {}, pushed=False)
    deps = _image(paths, "lab-deps", bases["lab-base"], {"site-packages": site_packages}, pushed=False)
    shared = Base(deps.reference, deps.content)
    engines = [
        _image(
            paths,
            name,
            shared,
            {"trispark_lab": repo / "lab" / "trispark_lab"},
            recipe_of="lab-engine",
            texts={"BUILD": f"{build}\n"},
            pushed=True,
        )
        for name, build in ENGINE_BUILDS.items()
    ]
    bench = _image(paths, "bench", shared, {"trispark_bench": repo / "src" / "trispark_bench"}, pushed=True)
    images = {image.name: image for image in (node, deps, *engines, bench)}
    prune(paths.cache / "context", "", [Path(image.context).name for image in images.values()])
    return images


def labels(image: Image) -> dict[str, str]:
    """All labels of an image that is pushed: the same from whatever directory it is built."""
    return {
        "org.opencontainers.image.title": f"trispark {image.name}",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": image.content,
    }


def _image(
    paths: Paths,
    name: str,
    base: Base,
    trees: dict[str, Path],
    *,
    pushed: bool,
    recipe_of: str | None = None,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> Image:
    """One image and its context. `recipe_of`: the image whose Dockerfile it has; `texts`: small files beside it."""
    recipe = paths.repo / "Dockerfiles" / (recipe_of or name)
    for directory in (recipe, *trees.values()):
        if not directory.is_dir():
            raise TrisparkError(
                "TS-LAB-SOURCE",
                "a source that the lab is made of is missing",
                where=str(directory),
                expected="a directory",
                observed="none",
                remedy="restore it from git",
            )
    # The name of a cached tree holds the hash of its sources; reading thousands of files again would cost a second.
    keys = [
        tree.name if tree.parent == paths.cache else hash_files(tree, source_files(tree)) for tree in trees.values()
    ]
    given = [f"{target}={text}" for target, text in sorted(texts.items())]
    content = hash_files(recipe, source_files(recipe), FORMAT, base.content, *given, *keys)[:16]
    context = paths.cache / "context" / f"{name}-{content}"

    def fill(partial: Path) -> None:
        _copy(source_files(recipe), recipe, partial)
        for target, tree in trees.items():
            # Hard links: a context is read once by the build and never written.
            linked = tree.parent == paths.cache
            _copy(source_files(tree), tree, partial / target, link=linked)
        for target, text in texts.items():
            (partial / target).write_text(text, encoding="utf-8")

    make_directory(context, fill)
    repository = f"{PUSH_REGISTRY}/trispark/{name}" if pushed else f"trispark/{name}"
    return Image(
        name=name,
        reference=f"{repository}:{root_id(paths.repo)[:8]}-{content}",
        content=content,
        context=str(context),
        base=base.reference,
        pushed=pushed,
    )


def _copy(files: Iterable[Path], source: Path, target: Path, *, link: bool = False) -> None:
    for path in files:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if link:
            os.link(path, copy)
        else:
            shutil.copyfile(path, copy)
            copy.chmod(0o755 if os.access(path, os.X_OK) else 0o644)

"""Build contexts and content hashes of the lab's images; the playbook builds what the engine has not yet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from trispark.errors import TrisparkError
from trispark.lab.files import hash_files, make_directory, prune, source_files
from trispark.lab.layout import PUSH_REGISTRY, Paths, root_id
from trispark.lab.prepared import Image


def ensure_contexts(paths: Paths, bases: dict[str, str], site_packages: Path) -> dict[str, Image]:
    """The four images in build order: the node, the shared packages, and the two on top of them."""
    root = root_id(paths.repo)
    node = _image(paths, root, "lab-node", bases["lab-node"], {}, pushed=False)
    deps = _image(paths, root, "lab-deps", bases["lab-base"], {"site-packages": site_packages}, pushed=False)
    engine = _image(
        paths, root, "lab-engine", deps.reference, {"trispark_lab": paths.repo / "lab" / "trispark_lab"}, pushed=True
    )
    bench = _image(
        paths, root, "bench", deps.reference, {"trispark_bench": paths.repo / "src" / "trispark_bench"}, pushed=True
    )
    images = {image.name: image for image in (node, deps, engine, bench)}
    prune(paths.cache / "context", "", [Path(image.context).name for image in images.values()])
    return images


def _image(paths: Paths, root: str, name: str, base: str, trees: dict[str, Path], *, pushed: bool) -> Image:
    recipe = paths.repo / "Dockerfiles" / name
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
    content = hash_files(recipe, source_files(recipe), base, *keys)[:16]
    context = paths.cache / "context" / f"{name}-{content}"

    def fill(partial: Path) -> None:
        _copy(source_files(recipe), recipe, partial)
        for target, tree in trees.items():
            # Hard links: a context is read once by the build and never written.
            linked = tree.parent == paths.cache
            _copy(source_files(tree), tree, partial / target, link=linked)

    make_directory(context, fill)
    repository = f"{PUSH_REGISTRY}/trispark/{name}" if pushed else f"trispark/{name}"
    return Image(
        name=name,
        reference=f"{repository}:{root[:8]}-{content}",
        content=content,
        context=str(context),
        base=base,
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

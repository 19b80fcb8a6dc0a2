"""Root file systems of the lab's images: pulled by digest where configured, else bootstrapped once, cached as tar."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker.errors
import yaml

from trispark.errors import TrisparkError
from trispark.host import Say
from trispark.images.layers import EPOCH
from trispark.lab.engine_api import EngineApi, image_exists
from trispark.lab.files import PARTIAL, hash_files, prune
from trispark.lab.layout import LABEL_CONTENT, LABEL_IMAGE, LABEL_ROOT, Paths, root_id
from trispark.lab.programs import BOOTSTRAP_PACKAGES, ensure_programs, run

NAMES: Final = ("lab-base", "lab-node")
PULL_PATIENCE_S: Final = 8.0
BOOTSTRAP_DEADLINE_S: Final = 1200.0
"""Downloads of a slow mirror included; about 35 s on a near one."""
MODE_VARIABLE: Final = "TRISPARK_LAB_BASE"
"""auto (the default), pull or bootstrap."""


@dataclass(frozen=True)
class Recipe:
    """One base: `key` is the hash of everything that decides its content."""

    name: str
    key: str
    suite: str
    pull: str
    packages: tuple[str, ...]


def load_recipes(repo: Path, machine: str) -> dict[str, Recipe]:
    """Read Dockerfiles/bases.yml; both keys change with the bootstrap script and the machine's architecture."""
    directory = repo / "Dockerfiles"
    sources = [directory / "bases.yml", directory / "bootstrap.sh"]
    loaded: dict[str, Any] = yaml.safe_load(sources[0].read_text(encoding="utf-8"))
    key = hash_files(directory, sources, machine, str(EPOCH))[:12]
    return {
        name: Recipe(
            name=name,
            key=key,
            suite=str(loaded["suite"]),
            pull=str(loaded["bases"][name]["pull"] or ""),
            packages=tuple(loaded["bases"][name]["packages"]),
        )
        for name in NAMES
    }


def base_tar(paths: Paths, recipe: Recipe) -> Path:
    """Where the root file system is kept once it was bootstrapped."""
    return paths.cache / f"{recipe.name}-{recipe.key}.tar"


def reference(recipe: Recipe, root: str) -> str:
    """Name of the base on this machine's engine; the root is in the tag because labels belong to one checkout."""
    return f"trispark/{recipe.name}-root:{root[:8]}-{recipe.key}"


def ensure_bases(paths: Paths, client: EngineApi, recipes: dict[str, Recipe], say: Say) -> dict[str, str]:
    """Base name -> image on this machine's engine, made where missing."""
    mode = os.environ.get(MODE_VARIABLE, "auto")
    if mode not in ("auto", "pull", "bootstrap"):
        raise TrisparkError(
            "TS-LAB-BASE",
            f"{MODE_VARIABLE} is not understood",
            where="the environment",
            expected="auto, pull or bootstrap",
            observed=mode,
            remedy=f"unset {MODE_VARIABLE}, or give it one of these",
        )
    root = root_id(paths.repo)
    found = {name: reference(recipe, root) for name, recipe in recipes.items()}
    missing = [name for name in NAMES if not image_exists(client, found[name])]
    missing = [name for name in missing if mode == "bootstrap" or not _pulled(client, recipes[name], found[name], say)]
    if missing and mode == "pull":
        raise TrisparkError(
            "TS-LAB-BASE",
            "a base image cannot be pulled",
            where=", ".join(missing),
            expected=f"a digest in Dockerfiles/bases.yml that answers within {PULL_PATIENCE_S:g} s",
            observed="no answer in time, or a refusal",
            remedy=f"unset {MODE_VARIABLE} to bootstrap instead",
        )
    if not missing:
        return found
    tars = {name: base_tar(paths, recipe) for name, recipe in recipes.items()}
    if any(not tars[name].is_file() for name in missing):
        _bootstrap(paths.repo, tars, recipes, say)
    with ThreadPoolExecutor(max_workers=len(missing)) as pool:
        list(pool.map(lambda name: _import(client, root, recipes[name], tars[name], found[name], say), missing))
    for name in NAMES:
        prune(paths.cache, f"{name}-", [tars[name].name])
    return found


def _import(client: EngineApi, root: str, recipe: Recipe, tar: Path, name: str, say: Say) -> None:
    say(f"importing {recipe.name}")
    repository, _, tag = name.rpartition(":")
    changes = [f"LABEL {LABEL_IMAGE}=1 {LABEL_ROOT}={root} {LABEL_CONTENT}={recipe.key}", 'CMD ["/bin/sh"]']
    client.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)
    if not image_exists(client, name):
        raise TrisparkError(
            "TS-LAB-BASE",
            "the Docker Engine did not import a base image",
            where=str(tar),
            expected=f"the image {name}",
            observed="no such image after the import",
            remedy="remove that file, then ./trispark lab up makes it anew; see the log of the Docker Engine",
        )


def _bootstrap(repo: Path, tars: dict[str, Path], recipes: dict[str, Recipe], say: Say) -> None:
    """Both tars in one pass of mmdebstrap as root; complete or absent."""
    ensure_programs(BOOTSTRAP_PACKAGES, say)
    base, node = (recipes[name] for name in NAMES)
    say(f"bootstrapping {base.suite} with mmdebstrap, once (about 35 s)")
    partial = {name: tar.with_name(tar.name + PARTIAL) for name, tar in tars.items()}
    script = repo / "Dockerfiles" / "bootstrap.sh"
    for leftover in partial.values():
        leftover.unlink(missing_ok=True)
    hook = f'sh {_quote(str(script))} "$1" {_quote(str(partial["lab-base"]))}'
    hook += f" {_quote(' '.join(base.packages))} {_quote(' '.join(node.packages))}"
    run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=custom",
            "--format=tar",
            "--dpkgopt=force-unsafe-io",
            # usr-is-merged instead of usrmerge: the latter pulls in the whole of perl.
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            "--include=?essential",
            "--include=usr-is-merged",
            f"--customize-hook={hook}",
            base.suite,
            str(partial["lab-node"]),
        ],
        "TS-LAB-BOOTSTRAP",
        "mmdebstrap did not make the root file systems",
        timeout_s=BOOTSTRAP_DEADLINE_S,
        env={
            "TMPDIR": "/var/tmp",
            "SOURCE_DATE_EPOCH": str(EPOCH),
        },  # /tmp may be a small tmpfs, and one without device nodes
        root_for="bootstrap the lab's root file systems",
    )
    run(
        ["chown", f"{os.getuid()}:{os.getgid()}", *map(str, partial.values())],
        "TS-LAB-BOOTSTRAP",
        "the root file systems could not be handed to this user",
        timeout_s=30,
        root_for="own the root file systems",
    )
    for name, tar in tars.items():
        partial[name].replace(tar)


def _pulled(client: EngineApi, recipe: Recipe, name: str, say: Say) -> bool:
    """Try the configured digest; a registry that does not answer in time is left to itself."""
    if not recipe.pull:
        return False
    say(f"pulling {recipe.pull}")
    failure: list[str] = []

    def pull() -> None:
        try:
            client.pull(recipe.pull)
        except docker.errors.APIError as error:
            failure.append(str(error))

    worker = threading.Thread(target=pull, daemon=True)
    worker.start()
    worker.join(PULL_PATIENCE_S)
    if worker.is_alive() or failure or not image_exists(client, recipe.pull):
        say(f"{recipe.pull} cannot be pulled: {failure[0] if failure else 'no answer in time'}")
        return False
    repository, _, tag = name.rpartition(":")
    return client.tag(recipe.pull, repository, tag)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

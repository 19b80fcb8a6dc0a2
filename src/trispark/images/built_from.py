"""Whether an image in an archive is the one of a build context: its labels, and no variable of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trispark.allowlist import CONTROLLED_PREFIXES
from trispark.errors import TrisparkError
from trispark.images.archive import ArchivedImage
from trispark.images.built import BuiltImage
from trispark.images.context_file import LABEL, BuildContext
from trispark.images.declaration import Image
from trispark.images.dockerfile_lint import controlled_names
from trispark.images.image_check import configured
from trispark.plainyaml import read_yaml

LABELS: Final[Mapping[str, str]] = {
    "org.opencontainers.image.title": "TITLE",
    "org.opencontainers.image.version": "VERSION",
    "org.opencontainers.image.revision": "REVISION",
    "org.opencontainers.image.base.name": "BASE_NAME",
    "org.opencontainers.image.base.digest": "BASE_DIGEST",
}
"""{label: the argument that a Dockerfile gives it}."""


def require_built_from(archived: ArchivedImage, context: BuildContext, where: Path) -> None:
    """Raises TS-IMAGES-OTHER for an image of another context; what differs is named, most telling first."""
    arguments = context.file.arguments
    wanted = {label: arguments[name] for label, name in LABELS.items() if name in arguments}
    for label, value in {**wanted, LABEL: context.file.id}.items():
        if archived.labels.get(label) != value:
            raise TrisparkError(
                "TS-IMAGES-OTHER",
                "the image in the archive was built of something else than this context",
                where=f"{where}, label {label}",
                expected=value,
                observed=archived.labels.get(label, "no such label")[:200],
                remedy="name the context that it was built from, or build it again with the command of build.json",
            )


def require_no_variable(root: Path, image: Image, archived: ArchivedImage, where: Path) -> None:
    """Raises TS-IMAGES-VARIABLE where the configuration sets what an experiment may set."""
    engines = read_yaml(root / "experiments/engines.yml")["engines"]
    expected = {
        "variables": sorted(controlled_names(root, image.serves)),
        # An image beside the engine inherits what the engine's base says of itself, and no launcher reads it.
        "prefixes": CONTROLLED_PREFIXES if image.serves is not None else (),
        "says_itself": engines[image.serves]["image_env"] if image.serves is not None else (),
    }
    found = list(configured(expected, archived.environment))
    if found:
        raise TrisparkError(
            "TS-IMAGES-VARIABLE",
            "an image sets a variable of an experiment",
            where=str(where),
            expected="none: they come from the launcher alone",
            observed=found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else ""),
            remedy="take another base: a variable that a base sets cannot be unset (docs/images.md)",
        )


def description(archived: ArchivedImage, context: BuildContext, repository: str) -> BuiltImage:
    """What its provenance is made from."""
    file = context.file
    return BuiltImage(
        name=file.name,
        repository=repository,
        manifest_digest=archived.image.manifest.digest,
        config_digest=archived.image.config.digest,
        architecture=file.architecture,
        dockerfile=file.dockerfile,
        dockerfile_sha256=context.files["Dockerfile"],
        base=file.base,
        base_digest=file.base_digest,
        arguments=file.arguments,
        context=context.files,
        dependencies=file.locked,
        commit=file.commit,
    )

"""Where an image comes from: an in-toto statement in SLSA's form, its bill of materials, and a signature over both.

Files, below a directory of the manifest's digest (64 hex digits, without `sha256:`):
    statement.json        canonical JSON; names the bill of materials by its hash, so that a signature covers both
    sbom.cdx.json         canonical JSON
    statement.json.sig    SSH signature of statement.json; absent where no key ever signed these bytes
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark import __version__
from trispark.canonical import canonical_json
from trispark.errors import TrisparkError
from trispark.images.bounded import read_file
from trispark.images.built import BuiltImage
from trispark.images.root_inventory import RootInventory
from trispark.images.sbom import sbom
from trispark.images.signing import Signer, SshKeygen, Tool, key_of
from trispark_node.canonical import sha256_hex
from trispark_node.provenance_files import MOST_BYTES, SBOM, SIGNATURE, STATEMENT

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:trispark:image-build:v1"
"""What the parameters mean: docs/images.md."""
BUILDER: Final = "urn:trispark:builder:local"
"""Whoever runs the project's own build on one machine; its signature says who that is."""
ATTEMPTS: Final = 20


@dataclass(frozen=True)
class Attested:
    """What `attest` wrote: the directory, and sha256 of each file; `signature` None where none is there.

    kept   the key of a signature from before that stays, as ssh-keygen shows it; None where none was kept
    lost   whether a file of a signature was there that is not of this statement
    """

    directory: Path
    statement: str
    sbom: str
    signature: str | None
    kept: str | None = None
    lost: bool = False


def statement(image: BuiltImage, sbom_sha256: str) -> dict[str, Any]:
    """The statement on one image, a function of its arguments and of this version alone.

    Subjects are its manifest and its configuration: one is what a node pulls by, the other what Docker calls its id.
    `sbom_sha256`: 64 hex digits of the file sbom.cdx.json.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            _resource(image.repository, image.manifest_digest, role="manifest"),
            _resource(image.repository, image.config_digest, role="config"),
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "image": image.name,
                    "dockerfile": image.dockerfile,
                    "arguments": dict(image.arguments),
                    "architecture": image.architecture,
                },
                "internalParameters": {"context_files": len(image.context)},
                "resolvedDependencies": _dependencies(image),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"trispark": __version__}},
                "byproducts": [{"name": SBOM, "digest": {"sha256": sbom_sha256}}],
            },
        },
    }


def _resource(name: str, digest: str, **annotations: str) -> dict[str, Any]:
    algorithm, _, value = digest.partition(":")
    return {"name": name, "digest": {algorithm: value}, "annotations": annotations}


def _dependencies(image: BuiltImage) -> list[dict[str, Any]]:
    """In one order, whatever order the builder has them in."""
    found = [
        _resource("dockerfile", f"sha256:{image.dockerfile_sha256}", role="dockerfile", path=image.dockerfile),
        _resource("context", f"sha256:{image.context_sha256}", role="context"),
    ]
    if image.base is not None and image.base_digest is not None:
        found.append(_resource(image.base, image.base_digest, role="base"))
    if image.commit is not None:
        found.append({"name": "source", "digest": {"gitCommit": image.commit}, "annotations": {"role": "source"}})
    for each in sorted(set(image.dependencies), key=lambda one: (one.purl, one.sha256)):
        found.append(
            {**_resource(each.name, f"sha256:{each.sha256}", role="lock", version=each.version), "uri": each.purl}
        )
    return found


def attest(
    image: BuiltImage, inventory: RootInventory, signer: Signer | None, directory: Path, tool: Tool | None = None
) -> Attested:
    """Write the files of this image to `directory`/<digest>; they are all there, or those from before are.

    Without a signer a signature from before stays where it is of the same bytes, by whatever key: who trusts it is
    judged elsewhere. `tool` looks at it.

    Raises TS-PROVENANCE-KEY and -TOOL where a signature cannot be made, -FILE where files cannot be written.
    """
    bill = _text(sbom(image, inventory))
    said = _text(statement(image, sha256_hex(bill)))
    files = {STATEMENT: said, SBOM: bill}
    target = directory / image.manifest_digest.partition(":")[2]
    kept, lost = None, False
    if signer is not None:
        files[SIGNATURE] = signer.sign(said)
    elif (before := _before(target / SIGNATURE)) is not None:
        kept = key_of(said, before, tool or SshKeygen())
        if kept is not None:
            files[SIGNATURE] = before
        lost = kept is None
    try:
        _replace(target, files)
    except OSError as error:
        raise TrisparkError(
            "TS-PROVENANCE-FILE",
            "the files of an image's provenance cannot be written",
            where=str(target),
            expected="room, and the right to write there",
            observed=error.strerror or str(error),
            remedy="make room, then run the same command again",
        ) from error
    signature = files.get(SIGNATURE)
    signed = None if signature is None else sha256_hex(signature)
    return Attested(target, sha256_hex(said), sha256_hex(bill), signed, kept, lost)


def _before(path: Path) -> bytes | None:
    """The signature that is there; None where there is none, empty for one that cannot be read."""
    try:
        return read_file(path, MOST_BYTES[SIGNATURE])
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _text(value: Mapping[str, Any]) -> bytes:
    return canonical_json(dict(value)).encode("utf-8") + b"\n"


def _replace(target: Path, files: Mapping[str, bytes]) -> None:
    """Whoever reads meanwhile compares hashes, so a look between the two renames finds nothing, never a mixture."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".attest-", dir=target.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        for name, content in files.items():
            (made / name).write_bytes(content)
        for attempt in range(ATTEMPTS):
            with suppress(FileNotFoundError):
                target.rename(Path(scratch) / f"replaced-{attempt}")
            try:
                made.rename(target)
            except OSError as error:
                # Somebody else put theirs there in between; the last one stays, as it would after one another.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or attempt == ATTEMPTS - 1:
                    raise
            else:
                return

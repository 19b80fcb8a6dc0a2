"""The chain behind an image for a reader: what it was made of, by what, and who signed that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.images.attestation import Verifier, fact_of, read_attestation, require_signed
from trispark.images.sbom import counts

_BEGINNING: Final = re.compile(r"[0-9a-f]{8,64}")


def find_digest(directory: Path, text: str) -> str:
    """`sha256:...` from a digest, a reference by digest, or at least 8 hex digits that begin one digest kept here.

    Raises TS-PROVENANCE-NONE.
    """
    wanted = text.rpartition("@")[2].removeprefix("sha256:")
    if len(wanted) == 64 and _BEGINNING.fullmatch(wanted):
        return f"sha256:{wanted}"
    kept = sorted(path.name for path in directory.glob("*") if re.fullmatch(r"[0-9a-f]{64}", path.name))
    found = [name for name in kept if _BEGINNING.fullmatch(wanted) and name.startswith(wanted)]
    if len(found) != 1:
        raise TrisparkError(
            "TS-PROVENANCE-NONE",
            "several images begin so" if found else "nothing is kept of an image with this digest",
            where=str(directory),
            expected="sha256: and 64 hex digits, or at least 8 that begin one of "
            + (", ".join(name[:12] for name in kept[-5:]) or "none, as there is nothing yet"),
            observed=text[:100],
            remedy="./trispark images attest makes it where the image was built",
        )
    return f"sha256:{found[0]}"


def chain(directory: Path, digest: str, image: str = "", verifier: Verifier | None = None) -> dict[str, Any]:
    """The chain of one image, its signature judged where there is a `verifier`.

    {image, digest, config_digest, name, architecture, dockerfile, arguments, base, source, dependencies (number),
    builder, components {kind: number}, fact (attestation.Fact), signed, verified}. Raises TS-PROVENANCE-*.
    """
    found = read_attestation(directory, digest)
    signed = None if verifier is None else require_signed(found, verifier)
    predicate = found.content["predicate"]
    parameters = predicate["buildDefinition"]["externalParameters"]
    arguments = parameters.get("arguments")
    roles = _by_role(predicate["buildDefinition"].get("resolvedDependencies") or ())
    builder = predicate["runDetails"]["builder"]
    config = [each for each in found.content["subject"] if (each.get("annotations") or {}).get("role") == "config"]
    image = image or f"{found.content['subject'][0].get('name')}@{digest}"
    return {
        "image": image,
        "digest": digest,
        "config_digest": _digest(config[0]) if config else None,
        "name": parameters.get("image"),
        "architecture": parameters.get("architecture"),
        "dockerfile": _named(roles.get("dockerfile"), str(parameters.get("dockerfile"))),
        "arguments": {name: str(value) for name, value in arguments.items()} if isinstance(arguments, dict) else {},
        "base": _named(roles.get("base")),
        "context": _named(roles.get("context")),
        "source": _named(roles.get("source")),
        "dependencies": len(roles.get("lock", ())),
        "builder": {"id": builder["id"], "version": builder.get("version") or {}},
        "components": counts(json.loads(found.bill)),
        "fact": fact_of(found, image, signed).as_dict(),
        "signed": found.signature is not None,
        "verified": signed is not None,
    }


def provenance_of(directory: Path, image: str, verifier: Verifier | None = None) -> dict[str, Any]:
    """As `chain`, for a reference by digest and for a reader who wants to see the rest as well: where it cannot be
    shown it is {image, digest, verified: False, problem: the six fields of the error}."""
    digest = f"sha256:{image.rpartition('sha256:')[2]}"
    try:
        return {**chain(directory, digest, image, verifier), "problem": None}
    except TrisparkError as error:
        return {"image": image, "digest": digest, "verified": False, "problem": error.as_dict()}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """For a person. What a statement says stays in its line: a line feed in it could otherwise say `verified`."""
    for line in _lines(found):
        yield "".join(each if each.isprintable() else "?" for each in line)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    fact = found["fact"]
    yield f"image      {found['image']}"
    yield f"config     {found['config_digest']}, {found['architecture']}"
    for part in ("dockerfile", "base", "context", "source"):
        entry = found[part]
        yield f"{part:<10} {entry['name']} {entry['digest']}" if entry else f"{part:<10} not known"
    for name, value in sorted(found["arguments"].items()):
        yield f"argument   {name}={value}"
    yield f"locked     {found['dependencies']} dependencies by their hashes"
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(found["components"].items()))
    yield f"holds      {kinds or 'no component that is known'} (sbom.cdx.json sha256 {fact['sbom_sha256']})"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found["builder"]["version"].items()))
    yield f"builder    {found['builder']['id']} ({versions})"
    yield f"statement  sha256 {fact['statement_sha256']}"
    if found["verified"]:
        yield f"signature  of {fact['signer']}, {fact['key']}: verified"
    else:
        yield "signature  there, not verified" if found["signed"] else "signature  none"


def _by_role(dependencies: Any) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in dependencies:
        found.setdefault(str((each.get("annotations") or {}).get("role") or ""), []).append(each)
    return found


def _named(entries: list[Mapping[str, Any]] | None, name: str = "") -> dict[str, str] | None:
    return {"name": name or str(entries[0].get("name")), "digest": _digest(entries[0])} if entries else None


def _digest(resource: Mapping[str, Any]) -> str:
    return ", ".join(f"{algorithm}:{value}" for algorithm, value in sorted((resource.get("digest") or {}).items()))

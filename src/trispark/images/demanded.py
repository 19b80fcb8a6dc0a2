"""What a site demands of the provenance of its images, judged on the controller before anything is stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trispark.errors import TrisparkError
from trispark.images.attestation import Fact, fact_of, read_attestation, require_signed
from trispark.images.signing import SshKeygen, SshVerifier, Tool

if TYPE_CHECKING:
    from datetime import datetime

    from trispark.site import Site

KNOWN_ALREADY: Final = ("rollback", "restore", "verify")
"""Purposes of a boot whose images ran here before: what was judged then is on the nodes and in the records."""


def provenance_directory(root: Path) -> Path:
    """Where the controller keeps statements, one directory a digest; of all sites, as they are of images."""
    return root / ".trispark" / "provenance"


def verifier_of(site: Site, tool: Tool | None = None, at: datetime | None = None) -> SshVerifier | None:
    """By the site's own files, which lie beside its hosts.yml; None where it names no signers."""
    if not site.image_signers:
        return None
    revoked = site.path / site.image_revoked if site.image_revoked else None
    return SshVerifier(site.path / site.image_signers, tool or SshKeygen(), revoked, at)


def judged(root: Path, site: Site, images: Iterable[str], tool: Tool | None = None) -> list[dict[str, Any]]:
    """A fact of each of these images (references by digest); nothing where the site demands no signature.

    Raises TS-PROVENANCE-*.
    """
    verifier = verifier_of(site, tool)
    if verifier is None:
        return []
    facts: list[Fact] = []
    for image in dict.fromkeys(images):
        found = read_attestation(provenance_directory(root), image.partition("@")[2])
        facts.append(fact_of(found, image, require_signed(found, verifier)))
    return [fact.as_dict() for fact in facts]


def outlook(root: Path, site: Site, images: Mapping[str, str], tool: Tool | None = None) -> str | None:
    """What a boot would find today of `images` ({what for: reference by digest}), in one line; None where the site
    demands nothing. It refuses nothing: a boot judges anew, when it is planned."""
    if verifier_of(site, tool) is None:
        return None
    said: dict[str, list[str]] = {}
    for what, image in images.items():
        try:
            (fact,) = judged(root, site, [image], tool)
            found = f"signed by {fact['signer']}"
        except TrisparkError as error:
            found = f"would be refused as it is now, {error.id}: {error.what} ({error.where})"
        said.setdefault(found, []).append(what)
    parts = "; ".join(f"{', '.join(what)}: {found}" for found, what in said.items())
    return f"the site demands signed images, judged when a boot is planned; {parts or 'it has no image yet'}"


def recorded(images: Iterable[str], records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the newest of `records` (oldest first) that has it says of each of these images; nothing of others."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for fact in record.get("provenance") or ():
            found[str(fact["image"])] = dict(fact)
    return [found[image] for image in dict.fromkeys(images) if image in found]


def files_of(root: Path, fact: Mapping[str, Any]) -> dict[str, str]:
    """{name: text} of the files that were judged as this fact says.

    Raises TS-PROVENANCE-CHANGED where the controller has others by now, and as `read_attestation` does.
    """
    found = read_attestation(provenance_directory(root), str(fact["image"]).partition("@")[2])
    now = fact_of(found, str(fact["image"]), None).as_dict()
    odd = [name for name in ("statement_sha256", "sbom_sha256", "signature_sha256") if now[name] != fact[name]]
    if odd:
        raise TrisparkError(
            "TS-PROVENANCE-CHANGED",
            "an image's provenance was changed after it was judged",
            where=str(found.directory),
            expected=f"{odd[0]} {fact[odd[0]]}",
            observed=str(now[odd[0]]),
            remedy="boot again; do not change .trispark/provenance meanwhile",
        )
    return {name: content.decode("utf-8") for name, content in found.files().items()}

"""Reads what `attest` wrote, and judges it: whole, of this image, and signed by somebody whom the site trusts."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from trispark.errors import TrisparkError
from trispark.images.bounded import read_file
from trispark.images.provenance import PREDICATE_TYPE, STATEMENT_TYPE
from trispark.images.signing import Signed
from trispark.plainyaml import check_model
from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.plain_json import parse_json
from trispark_node.provenance_files import MOST_BYTES, SBOM, SIGNATURE, STATEMENT

_AGAIN: Final = "find out who changed it; ./trispark images attest makes it anew from the built image"


class Verifier(Protocol):
    """Whoever judges signatures."""

    def verify(self, message: bytes, signature: bytes, where: str) -> Signed: ...


class _Read(BaseModel):
    """As much of a statement as is judged; a later version may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Resource(_Read):
    name: str = ""
    digest: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, Any] = Field(default_factory=dict)


class _Builder(_Read):
    id: Annotated[str, Field(min_length=1)]
    version: dict[str, str] = Field(default_factory=dict)


class _Details(_Read):
    builder: _Builder
    byproducts: tuple[_Resource, ...] = ()


class _Definition(_Read):
    buildType: Annotated[str, Field(min_length=1)]
    externalParameters: dict[str, Any]
    resolvedDependencies: tuple[_Resource, ...] = ()


class _Predicate(_Read):
    buildDefinition: _Definition
    runDetails: _Details


class _Statement(_Read):
    type: Annotated[str, Field(alias="_type", pattern=f"^{STATEMENT_TYPE}$")]
    subject: tuple[_Resource, ...] = Field(min_length=1)
    predicateType: Annotated[str, Field(pattern=f"^{PREDICATE_TYPE}$")]
    predicate: _Predicate


class _Component(_Read):
    ref: Annotated[str, Field(alias="bom-ref", min_length=1)]


class _Bill(_Read):
    bomFormat: Annotated[str, Field(pattern="^CycloneDX$")]
    components: tuple[_Component, ...]


@dataclass(frozen=True)
class Attestation:
    """The files of one image, read once: what was judged is what is used. `digest`: `sha256:...` of the manifest."""

    directory: Path
    digest: str
    statement: bytes
    bill: bytes
    signature: bytes | None
    content: Mapping[str, Any]

    def files(self) -> dict[str, bytes]:
        found = {STATEMENT: self.statement, SBOM: self.bill}
        return found if self.signature is None else {**found, SIGNATURE: self.signature}


@dataclass(frozen=True)
class Fact:
    """What was judged of an image before it ran: hashes of its files, and who signed (None: nobody was asked for)."""

    image: str
    statement_sha256: str
    sbom_sha256: str
    signature_sha256: str | None
    signer: str | None
    key: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_attestation(directory: Path, digest: str) -> Attestation:
    """The files below `directory` of the image whose manifest has this digest (`sha256:...`).

    Raises TS-PROVENANCE-NONE, -FILE (missing, a link, too large), -FORM (no statement in canonical JSON), -SUBJECT (of
    another image), -SBOM (the bill of materials is not the one that the statement names).
    """
    place = directory / digest.partition(":")[2]
    if not place.is_dir() or place.is_symlink():
        raise TrisparkError(
            "TS-PROVENANCE-NONE",
            "nothing says where this image comes from",
            where=str(place),
            expected=f"{STATEMENT}, {SBOM} and {SIGNATURE} of {digest}",
            observed="a link" if place.is_symlink() else "no such directory",
            remedy="./trispark images attest, where it was built; or copy that directory from there",
        )
    said, bill = _read(place / STATEMENT), _read(place / SBOM)
    signature = _read(place / SIGNATURE) if _is_there(place / SIGNATURE) else None
    content = _content(place / STATEMENT, said)
    check_model(_Bill, _content(place / SBOM, bill), str(place / SBOM), "TS-PROVENANCE-FORM")
    parsed = check_model(_Statement, content, str(place / STATEMENT), "TS-PROVENANCE-FORM")
    subjects = [each.digest.get("sha256", "") for each in parsed.subject]
    if digest.partition(":")[2] not in subjects:
        raise TrisparkError(
            "TS-PROVENANCE-SUBJECT",
            "the statement is of another image",
            where=str(place / STATEMENT),
            expected=digest,
            observed=", ".join(f"sha256:{each}" for each in subjects),
            remedy="./trispark images attest of this image",
        )
    named = [each.digest.get("sha256") for each in parsed.predicate.runDetails.byproducts if each.name == SBOM]
    if named != [sha256_hex(bill)]:
        raise TrisparkError(
            "TS-PROVENANCE-SBOM",
            "the bill of materials is not the one of the statement",
            where=str(place / SBOM),
            expected=f"sha256 {', '.join(map(str, named)) or 'that the statement names'}",
            observed=sha256_hex(bill),
            remedy=_AGAIN,
        )
    return Attestation(place, digest, said, bill, signature, content)


def fact_of(attestation: Attestation, image: str, signed: Signed | None) -> Fact:
    """`image`: the reference by digest that was asked for."""
    return Fact(
        image,
        sha256_hex(attestation.statement),
        sha256_hex(attestation.bill),
        None if attestation.signature is None else sha256_hex(attestation.signature),
        None if signed is None else signed.signer,
        None if signed is None else signed.key,
    )


def require_signed(attestation: Attestation, verifier: Verifier) -> Signed:
    """Raises TS-PROVENANCE-UNSIGNED, and as `signing.SshVerifier.verify` does."""
    if attestation.signature is None:
        raise TrisparkError(
            "TS-PROVENANCE-UNSIGNED",
            "the statement is not signed",
            where=str(attestation.directory),
            expected=SIGNATURE,
            observed="no such file",
            remedy="./trispark images attest with a key (site_image_key, or --key)",
        )
    return verifier.verify(attestation.statement, attestation.signature, str(attestation.directory / STATEMENT))


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES[path.name])
    except OSError as error:
        observed = "a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise TrisparkError(
            "TS-PROVENANCE-FILE",
            "a file of the image's provenance cannot be used",
            where=str(path),
            expected=f"a regular file of at most {MOST_BYTES[path.name]} bytes",
            observed=observed,
            remedy=_AGAIN,
        ) from None


def _content(path: Path, data: bytes) -> dict[str, Any]:
    value = _canonical(path, data)
    if not isinstance(value, dict):
        raise _form(path, f"JSON of another kind ({type(value).__name__})")
    return value


def _canonical(path: Path, data: bytes) -> Any:
    try:
        value = parse_json(data)
        same = canonical_json(value) + b"\n" == data
    except ValueError as error:
        raise _form(path, str(error)[:120]) from None
    if not same:
        raise _form(path, "other bytes than its content has in canonical form")
    return value


def _form(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-PROVENANCE-FORM",
        "a file of the image's provenance is not as it was written",
        where=str(path),
        expected="canonical JSON",
        observed=observed,
        remedy=_AGAIN,
    )

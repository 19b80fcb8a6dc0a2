"""Verb `provenance-store`: keeps what proves where an image comes from, as the controller judged it before a boot.

    provenance/<digest>/<id>/   statement.json, sbom.cdx.json, statement.json.sig; never changed
    provenance/<digest>/fact.json   what was judged last of this image, for a rollback, which asks nobody

`<digest>` are the 64 hex digits of the image's manifest; `<id>` comes from the hashes of the files and from who
signed, so an image that is signed anew does not replace what a record points to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.image_name import IMAGE
from trispark_node.layout import STATE_DIRECTORY_MODE, STATE_FILE_MODE
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.provenance_files import MOST_BYTES, SBOM, SIGNATURE, STATEMENT
from trispark_node.regular_file import read_bounded

if TYPE_CHECKING:
    from trispark_node.records import Stored

FACT = "fact.json"
_FACT_BYTES = 65536
_STAGING = ".staging-"
_HASH = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{16}")
_SHORT = re.compile(r"[^\n\r\x00]{1,300}")


@dataclass(frozen=True)
class Fact:
    """What the controller judged: hashes of the files, and who signed; None where no signature was there."""

    image: str
    statement_sha256: str
    sbom_sha256: str
    signature_sha256: str | None
    signer: str | None
    key: str | None

    @classmethod
    def parse(cls, fields: Fields) -> Fact:
        found = cls(
            fields.text("image", pattern=IMAGE),
            fields.text("statement_sha256", pattern=_HASH),
            fields.text("sbom_sha256", pattern=_HASH),
            fields.optional_text("signature_sha256", pattern=_HASH),
            fields.optional_text("signer", pattern=_SHORT),
            fields.optional_text("key", pattern=_SHORT),
        )
        fields.done()
        return found

    def json(self) -> dict[str, Any]:
        return {
            "image": self.image,
            "statement_sha256": self.statement_sha256,
            "sbom_sha256": self.sbom_sha256,
            "signature_sha256": self.signature_sha256,
            "signer": self.signer,
            "key": self.key,
        }

    @property
    def digest(self) -> str:
        """64 hex digits."""
        return digest_of(self.image)

    @property
    def id(self) -> str:
        """Of these files and this judgement, whatever the image is called."""
        return sha256_hex(canonical_json({**self.json(), "image": self.digest}))[:16]


def digest_of(image: str) -> str:
    """The 64 hex digits of a reference by digest."""
    return image.rpartition("sha256:")[2]


@dataclass(frozen=True)
class StoreRequest:
    fact: Fact
    content: Mapping[str, bytes]

    @classmethod
    def parse(cls, fields: Fields) -> StoreRequest:
        """Refused when the files are not those of the fact, or too large."""
        fact = Fact.parse(fields.inner("fact"))
        content = fields.content_mapping("files")
        listed = {STATEMENT: fact.statement_sha256, SBOM: fact.sbom_sha256}
        if fact.signature_sha256 is not None:
            listed[SIGNATURE] = fact.signature_sha256
        large = [name for name, data in content.items() if len(data) > MOST_BYTES.get(name, 0)]
        if sorted(content) != sorted(listed) or large:
            raise request_error(
                "the files are not these",
                where="request.files",
                expected=", ".join(f"{name} of at most {MOST_BYTES[name]} bytes" for name in listed),
                observed=", ".join(f"{name} of {len(data)}" for name, data in sorted(content.items())) or "none",
            )
        sent = {name: sha256_hex(data) for name, data in content.items()}
        if sent != listed:
            odd = sorted(name for name in listed if sent[name] != listed[name])
            raise AgentError(
                "TS-AGENT-PROVENANCE",
                "the files are not those that the controller judged",
                where=f"request.files ({', '.join(odd)})",
                expected=", ".join(listed[name] for name in odd),
                observed=", ".join(sent[name] for name in odd),
                remedy="do not change .trispark/provenance during a boot; boot again",
            )
        return cls(fact, content)


def plan_store(node: Node, request: StoreRequest) -> Plan:
    fact = request.fact
    directory = node.layout.provenance_of(fact.digest)
    target = directory / fact.id
    there = _whole(target, request.content)
    last = read_fact(node, fact.image)
    answer = {"id": fact.id, "digest": fact.digest}
    if there and last == fact:
        return Plan(None, answer)

    def apply() -> dict[str, Any]:
        disk = node.disk
        disk.make_directory(node.layout.provenance, STATE_DIRECTORY_MODE)
        disk.make_directory(directory, STATE_DIRECTORY_MODE)
        remove_leftovers(node)
        if not there:
            staging = directory / f"{_STAGING}{fact.id}"
            disk.make_directory(staging, STATE_DIRECTORY_MODE)
            for name, data in sorted(request.content.items()):
                disk.write_new(staging / name, data, STATE_FILE_MODE)
            disk.sync_directory(staging)
            if target.is_symlink() or target.is_file():
                disk.remove_file(target)
            elif target.exists():
                disk.remove_tree(target)  # damaged: what is sent has the hashes that its id comes from
            disk.rename(staging, target)
        disk.replace(directory / FACT, canonical_json(fact.json()) + b"\n")
        return {}

    before = "nothing" if last is None else last.id
    return Plan(
        apply,
        answer,
        {"image": fact.image, "id": fact.id, "signer": fact.signer},
        (f"provenance {before}\n", f"provenance {fact.id}\n"),
    )


def _whole(directory: Path, content: Mapping[str, bytes]) -> bool:
    """Whether exactly these files lie there."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    if sorted(path.name for path in directory.iterdir()) != sorted(content):
        return False
    try:
        return all(
            not (directory / name).is_symlink() and read_bounded(directory / name, MOST_BYTES[name]) == data
            for name, data in content.items()
        )
    except OSError:
        return False


def read_fact(node: Node, image: str) -> Fact | None:
    """What was judged last of this image. None also where it cannot be read: no way back may depend on it."""
    path = node.layout.provenance_of(digest_of(image)) / FACT
    try:
        return Fact.parse(Fields(parse_json(read_bounded(path, _FACT_BYTES)), str(path)))
    except (OSError, ValueError, TypeError, AttributeError, AgentError):
        return None


def remove_leftovers(node: Node) -> None:
    """The lock is ours: what lies here under a temporary name belongs to a process that died."""
    for path in _entries(node.layout.provenance):
        for leftover in _entries(path):
            if leftover.name.startswith(_STAGING):
                node.disk.remove_tree(leftover)
            elif leftover.name == f".{FACT}.new":
                node.disk.remove_file(leftover)


def stored(node: Node, detail: Mapping[str, Any]) -> bool:
    """Whether an interrupted store reached its end."""
    remove_leftovers(node)
    fact = read_fact(node, str(detail["image"]))
    return fact is not None and fact.id == detail["id"]


def unneeded(node: Node, chain: list[Stored], images: set[str]) -> list[Path]:
    """What no record names and no image of `images` (references of generations that stay) still needs.

    A directory of a whole image, or one <id> of it.
    """
    named = {(digest_of(fact.image), fact.id) for each in chain for fact in _facts(each.record)}
    kept = {digest_of(image) for image in images}
    found: list[Path] = []
    for directory in _entries(node.layout.provenance):
        if not _HASH.fullmatch(directory.name) or directory.is_symlink() or not directory.is_dir():
            continue
        if directory.name in kept:
            continue
        ids = [path for path in _entries(directory) if _ID.fullmatch(path.name)]
        free = [path for path in ids if (directory.name, path.name) not in named]
        if len(free) == len(ids):
            found.append(directory)
            continue
        last = read_fact(node, f"sha256:{directory.name}")
        found += [path for path in free if last is None or path.name != last.id]
    return found


def _facts(record: Mapping[str, Any]) -> list[Fact]:
    """Of one record; what is not as we write it names nothing."""
    found = []
    for value in record.get("provenance") or ():
        try:
            found.append(Fact.parse(Fields(value, "provenance")))
        except (AgentError, TypeError, AttributeError):
            continue
    return found


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []

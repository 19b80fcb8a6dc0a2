"""Whether the files by which a site judges signatures are there and of their form, before a boot needs them."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.images.signing import NAMESPACE, SIGNERS_BYTES, SshVerifier, Tool
from trispark_node.regular_file import read_bounded

_KEY: Final = r"(?P<type>(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[A-Za-z0-9@.-]+)\s+(?P<key>[A-Za-z0-9+/=]+)(?:\s.*)?"
_OPTION: Final = r'(?:cert-authority|(?:namespaces|valid-after|valid-before)="[^"]*")'
_SIGNER: Final = re.compile(
    rf'(?P<names>"[^"]+"|[^\s"]+)\s+(?:(?P<options>{_OPTION}(?:,{_OPTION})*)\s+)?{_KEY}', re.IGNORECASE
)
_REVOKED: Final = re.compile(_KEY)
_NAMESPACES: Final = re.compile(r'namespaces="([^"]*)"', re.IGNORECASE)
_KRL: Final = b"SSHKRL\n\x00"


def problems_of(verifier: SshVerifier) -> Iterator[TrisparkError]:
    """One for each thing that is wrong, all TS-PROVENANCE-SIGNERS. Whether a key is valid today is a boot's to judge.

    Raises TS-PROVENANCE-TOOL where a key revocation list cannot be looked at.
    """
    yield from _signers(verifier.signers)
    if verifier.revoked is not None:
        yield from _revoked(verifier.revoked, verifier.tool)


def _signers(path: Path) -> Iterator[TrisparkError]:
    data = _content(path)
    if isinstance(data, TrisparkError):
        yield data
        return
    usable = False
    for number, line in _lines(data):
        found = _SIGNER.fullmatch(line)
        if found is None or not _is_key(found["type"], found["key"]):
            yield _problem(f"{path} line {number}", "NAME [OPTIONS] TYPE KEY, as in allowed_signers", "another form")
        else:
            usable |= _may_sign(found["names"], found["options"] or "")
    if not usable:
        expected = f"a line with a name without wildcards, for {NAMESPACE}"
        yield _problem(str(path), expected, "none: nobody may sign, so every boot is refused")


def _revoked(path: Path, tool: Tool) -> Iterator[TrisparkError]:
    data = _content(path)
    if isinstance(data, TrisparkError):
        yield data
    elif data.startswith(_KRL):
        if tool.run(["-Q", "-l", "-f", str(path)], b"").status != 0:
            yield _problem(str(path), "a key revocation list", "one that ssh-keygen cannot read")
    else:
        for number, line in _lines(data):
            found = _REVOKED.fullmatch(line)
            if found is None or not _is_key(found["type"], found["key"]):
                yield _problem(f"{path} line {number}", "a public key: TYPE KEY", "another form")


def _content(path: Path) -> bytes | TrisparkError:
    try:
        return read_bounded(path, SIGNERS_BYTES)
    except OSError as error:
        return _problem(str(path), "an allowed_signers file, or a list of revoked keys", error.strerror or str(error))


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text


def _is_key(kind: str, key: str) -> bool:
    """Whether the blob is a key of the type that the line says: its first string has the name again."""
    try:
        blob = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return False
    length = int.from_bytes(blob[:4], "big")
    return len(blob) > 4 + length and blob[4 : 4 + length] == kind.encode("ascii")


def _may_sign(names: str, options: str) -> bool:
    plain = [name for name in names.strip('"').split(",") if name and not set(name) & set("*?!")]
    found = _NAMESPACES.search(options)
    patterns = None if found is None else [each.strip() for each in found[1].split(",")]
    if patterns is None:
        return bool(plain)
    refused = any(each.startswith("!") and fnmatch.fnmatchcase(NAMESPACE, each[1:]) for each in patterns)
    return bool(plain) and not refused and any(fnmatch.fnmatchcase(NAMESPACE, each) for each in patterns)


def _problem(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-PROVENANCE-SIGNERS",
        "a file by which the site judges signatures cannot be used",
        where=where,
        expected=expected,
        observed=observed,
        remedy="correct it, or site_image_signers or site_image_revoked, relative to the site's inventory",
    )

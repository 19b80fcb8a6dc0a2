"""SSH signatures over statements, by `ssh-keygen -Y`: made with a key or an agent, judged by an allowed_signers file.

Only the path of a key is ever handed on; its content stays with ssh-keygen, a passphrase with the SSH agent.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from trispark.errors import TrisparkError
from trispark_node.provenance_files import MOST_BYTES, SIGNATURE
from trispark_node.regular_file import open_regular

NAMESPACE: Final = "trispark-image@v1"
"""What a signature is for: one made for anything else, such as a git commit, proves nothing here."""
DEADLINE_S: Final = 60.0
"""Of one call; a key in hardware may wait for a touch."""
MOST_NAMES: Final = 20
"""Names of one key that are tried."""
SIGNERS_BYTES: Final = 2**20
_PASSED_ON: Final = ("PATH", "HOME", "SSH_AUTH_SOCK")
_ARMOR: Final = re.compile(rb"-----BEGIN SSH SIGNATURE-----\n(.+)\n-----END SSH SIGNATURE-----\n?", re.DOTALL)
_MAGIC: Final = b"SSHSIG"
_GOOD: Final = re.compile(r'^Good ".*" signature (?:for .* )?with (\S+ key SHA256:\S+)$', re.MULTILINE)


class Signer(Protocol):
    """Whoever signs statements."""

    def sign(self, message: bytes) -> bytes:
        """The armored SSH signature. Raises TS-PROVENANCE-KEY, TS-PROVENANCE-TOOL."""


@dataclass(frozen=True)
class Done:
    """What a call of ssh-keygen left: its exit status and texts."""

    status: int
    out: bytes
    err: str


class Tool(Protocol):
    """Runs ssh-keygen."""

    def run(self, arguments: Sequence[str], message: bytes) -> Done:
        """Raises TS-PROVENANCE-TOOL where it cannot be run, or does not end."""


class SshKeygen:
    """The program of this machine, without a terminal: nothing asks for a passphrase, nothing waits for an answer."""

    def __init__(self, program: str = "ssh-keygen", environment: Mapping[str, str] | None = None) -> None:
        self._program = program
        self._environment = os.environ if environment is None else environment

    def run(self, arguments: Sequence[str], message: bytes) -> Done:
        own = {name: self._environment[name] for name in _PASSED_ON if name in self._environment}
        try:
            done = subprocess.run(
                [self._program, *arguments],
                input=message,
                capture_output=True,
                check=False,
                timeout=DEADLINE_S,
                start_new_session=True,
                env={**own, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            late = isinstance(error, subprocess.TimeoutExpired)
            raise TrisparkError(
                "TS-PROVENANCE-TOOL",
                "ssh-keygen does not end" if late else "ssh-keygen cannot be run",
                where=self._program,
                expected=f"its end within {DEADLINE_S:g} s" if late else "a program of OpenSSH 8.9 or newer",
                observed="none" if late else getattr(error, "strerror", None) or str(error),
                remedy="look at the SSH agent and at its keys" if late else "install the package openssh-client",
            ) from None
        return Done(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))


@dataclass(frozen=True)
class SshSigner:
    """Signs with the private key at `key`; also with a public one there, whose private half an SSH agent has."""

    key: Path
    tool: Tool

    def sign(self, message: bytes) -> bytes:
        done = self.tool.run(["-Y", "sign", "-n", NAMESPACE, "-f", str(self.key)], message)
        if done.status != 0 or not done.out:
            # ssh-keygen ignores such a key, and its last line then says that there is none.
            open_to_others = "are too open" in done.err
            raise TrisparkError(
                "TS-PROVENANCE-KEY",
                "the statement could not be signed",
                where=str(self.key),
                expected="a private key of yours alone without passphrase, or one that the SSH agent has",
                observed=_last(done.err, "are too open"),
                remedy=f"chmod 600 {shlex.quote(str(self.key))}"
                if open_to_others
                else "correct site_image_key or --key, or add the key to the agent (ssh-add)",
            )
        return done.out


@dataclass(frozen=True)
class Signed:
    """Whose signature it is: the name in the allowed_signers file, and the key as ssh-keygen shows it."""

    signer: str
    key: str


@dataclass(frozen=True)
class SshVerifier:
    """Judges signatures: `signers` is an allowed_signers file, `revoked` a key revocation list or public keys.

    `at`: when the keys must have been valid; None is now.
    """

    signers: Path
    tool: Tool
    revoked: Path | None = None
    at: datetime | None = None

    def verify(self, message: bytes, signature: bytes, where: str) -> Signed:
        """`where`: what the signature is of, for messages.

        Raises TS-PROVENANCE-SIGNATURE (no signature, or of something else), -NAMESPACE, -SIGNER (nobody whom the site
        trusts), -EXPIRED, -REVOKED, -SIGNERS (a file of the site cannot be read), -TOOL.
        """
        self._require_files()
        found = namespace_of(signature, where)
        if found != NAMESPACE:
            raise TrisparkError(
                "TS-PROVENANCE-NAMESPACE",
                "the signature was made for another purpose",
                where=where,
                expected=NAMESPACE,
                observed=found[:80],
                remedy="sign the statement with ./trispark images attest",
            )
        with tempfile.TemporaryDirectory(prefix="trispark-signature-") as scratch:
            path = Path(scratch) / "signature"
            path.write_bytes(signature)
            return self._judge(message, path, where)

    def _judge(self, message: bytes, signature: Path, where: str) -> Signed:
        time = [] if self.at is None else ["-O", f"verify-time={self.at.astimezone(UTC):%Y%m%d%H%M%SZ}"]
        checked = self.tool.run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)], message)
        if checked.status != 0:
            raise self._refusal(
                "TS-PROVENANCE-SIGNATURE",
                "the signature is of something else",
                where,
                "a signature of this very statement",
                _last(checked.err),
                "find out what was changed; ./trispark images attest makes both anew",
            )
        found = self.tool.run(["-Y", "find-principals", "-s", str(signature), "-f", str(self.signers), *time], message)
        names = [name for name in found.out.decode("utf-8", "replace").splitlines() if name]
        # find-principals stops at the first line of the key, which may be for another purpose: those of all its lines.
        names += [name for name in _names_of(signature.read_bytes(), self.signers, where) if name not in names]
        plain = [name for name in names if not set(name) & set("*?!")][:MOST_NAMES]
        if not plain:
            raise self._nobody(names, found, where)
        for name in plain:
            who = ["-Y", "verify", "-n", NAMESPACE, "-I", name, "-s", str(signature)]
            base = [*who, "-f", str(self.signers), *time]
            done = self.tool.run(base, message)
            key = _GOOD.search(done.out.decode("utf-8", "replace"))
            if done.status == 0 and key is not None:
                break
        if done.status != 0 or key is None:
            raise self._nobody(names, found if found.status else done, where)
        if self.revoked is not None and self.tool.run([*base, "-r", str(self.revoked)], message).status != 0:
            raise self._refusal(
                "TS-PROVENANCE-REVOKED",
                "the key of the signature was revoked",
                where,
                f"a key that is not in {self.revoked}",
                f"{key[1]} of {name}",
                "build and sign the image again with a key that is trusted",
            )
        return Signed(name, key[1])

    def _nobody(self, names: Sequence[str], done: Done, where: str) -> TrisparkError:
        if "expired" in done.err or "not yet valid" in done.err:
            return self._refusal(
                "TS-PROVENANCE-EXPIRED",
                "the key of the signature is not valid at this time",
                where,
                f"a time for which {self.signers} trusts the key",
                _last(done.err, "valid"),
                "sign with a key that is valid; for a signature of the past give its time with --at",
            )
        return self._refusal(
            "TS-PROVENANCE-SIGNER",
            "the signature is of nobody whom the site trusts",
            where,
            f"a signer whom {self.signers} names, without wildcards, for {NAMESPACE}",
            f"a key of {', '.join(names)}" if names else _last(done.err),
            "sign with a key that the site trusts, or add the signer to that file",
        )

    @staticmethod
    def _refusal(error_id: str, what: str, where: str, expected: str, observed: str, remedy: str) -> TrisparkError:
        return TrisparkError(error_id, what, where, expected, observed, remedy)

    def _require_files(self) -> None:
        for path in filter(None, (self.signers, self.revoked)):
            try:
                with os.fdopen(open_regular(path), "rb") as file:
                    size = len(file.read(SIGNERS_BYTES + 1))
                problem = f"more than {SIGNERS_BYTES} bytes" if size > SIGNERS_BYTES else None
            except OSError as error:
                problem = error.strerror or str(error)
            if problem is not None:
                raise TrisparkError(
                    "TS-PROVENANCE-SIGNERS",
                    "a file by which the site judges signatures cannot be read",
                    where=str(path),
                    expected="an allowed_signers file, or a list of revoked keys",
                    observed=problem,
                    remedy="correct site_image_signers or site_image_revoked, relative to the site's inventory",
                )


def key_of(message: bytes, signature: bytes, tool: Tool) -> str | None:
    """The key whose signature of these very bytes this is, as ssh-keygen shows it, whoever trusts it; None where it is
    none of them for our namespace. Raises TS-PROVENANCE-TOOL."""
    with tempfile.TemporaryDirectory(prefix="trispark-signature-") as scratch:
        path = Path(scratch) / "signature"
        path.write_bytes(signature)
        done = tool.run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(path)], message)
    found = _GOOD.search(done.out.decode("utf-8", "replace"))
    return found[1] if done.status == 0 and found is not None else None


def namespace_of(signature: bytes, where: str) -> str:
    """What an armored SSH signature says it is for. Raises TS-PROVENANCE-SIGNATURE."""
    return _parts(signature, where)[1]


def _names_of(signature: bytes, signers: Path, where: str) -> list[str]:
    """The principals of every line that has this key; whether they may sign is ssh-keygen's judgement."""
    key = base64.b64encode(_parts(signature, where)[0]).decode("ascii")
    found: list[str] = []
    for line in signers.read_text(encoding="utf-8", errors="replace").splitlines():
        principals = line.strip()
        if not principals.startswith(("#", '"')) and key in principals.split():
            found += [name for name in principals.split()[0].split(",") if name]
    return found


def _parts(signature: bytes, where: str) -> tuple[bytes, str]:
    """(the public key, the namespace) of an armored SSH signature. Raises TS-PROVENANCE-SIGNATURE."""
    try:
        match = _ARMOR.fullmatch(signature)
        if match is None or len(signature) > MOST_BYTES[SIGNATURE]:
            raise ValueError("no armored SSH signature")
        blob = base64.b64decode(match[1].replace(b"\n", b""), validate=True)
        if not blob.startswith(_MAGIC):
            raise ValueError("no SSH signature")
        version, rest = struct.unpack_from(">I", blob, len(_MAGIC))[0], blob[len(_MAGIC) + 4 :]
        if version != 1:
            raise ValueError(f"version {version}")
        key, rest = _string(rest)
        name, _ = _string(rest)
        return key, name.decode("utf-8")
    except (ValueError, struct.error, binascii.Error) as error:
        raise TrisparkError(
            "TS-PROVENANCE-SIGNATURE",
            "this is no SSH signature",
            where=where,
            expected="what ssh-keygen -Y sign wrote",
            observed=str(error)[:120],
            remedy="find out what was changed; ./trispark images attest signs anew",
        ) from None


def _string(data: bytes) -> tuple[bytes, bytes]:
    """A string of SSH's wire format, and what follows it."""
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 4:
        raise ValueError("cut off")
    return data[4 : 4 + length], data[4 + length :]


def _last(text: str, word: str = "") -> str:
    """The last line that says something, with `word` in it where there is such a one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("@")]
    return ([line for line in lines if word in line] or lines or ["nothing"])[-1][:200]

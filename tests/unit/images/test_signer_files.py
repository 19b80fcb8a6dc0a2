"""The files by which a site judges signatures: what is wrong with them is found before a boot, and nothing else is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from built_images import allow, make_key

from trispark.errors import TrisparkError
from trispark.images.signer_files import problems_of
from trispark.images.signing import NAMESPACE, SshKeygen, SshVerifier


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys"), "builder")


@pytest.fixture
def verifier(tmp_path: Path, key: Path) -> SshVerifier:
    return SshVerifier(allow(tmp_path / "signers", ("builder@example", key, "")), SshKeygen())


def public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def found(verifier: SshVerifier) -> list[tuple[str, str]]:
    """(the place after the file's name, what was observed)."""
    problems = list(problems_of(verifier))
    assert {problem.id for problem in problems} <= {"TS-PROVENANCE-SIGNERS"}
    return [(Path(problem.where).name, problem.observed) for problem in problems]


NOBODY = ("signers", "none: nobody may sign, so every boot is refused")
FORM = "another form"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("builder@example KEY\n", []),
        ('# who builds\n\nbuilder@example KEY a comment, with "quotes"\r\n', []),
        ('"builder@example,other@example" KEY\n', []),
        ("builder@example,*@example KEY\n", []),
        (f'builder@example namespaces="git,{NAMESPACE}",valid-before="20200101" KEY\n', []),
        ('builder@example namespaces="trispark-*" KEY\n', []),
        ("builder@example cert-authority KEY\n", []),
        ("", [NOBODY]),
        ("# nobody\n", [NOBODY]),
        ("*@example KEY\n", [NOBODY]),
        ('builder@example namespaces="git" KEY\n', [NOBODY]),
        (f'builder@example namespaces="!{NAMESPACE},*" KEY\n', [NOBODY]),
        ("KEY\n", [("signers line 1", FORM), NOBODY]),
        ("garbage\n", [("signers line 1", FORM), NOBODY]),
        ("builder@example KEY\n\nother@example ssh-ed25519 AAAA\n", [("signers line 3", FORM)]),
        ("builder@example KEY\nother@example ssh-rsa BLOB\n", [("signers line 2", FORM)]),
        ('builder@example KEY\nother@example namespace="x" KEY\n', [("signers line 2", FORM)]),
        ("\x00\xff\n", [("signers line 1", FORM), NOBODY]),
    ],
)
def test_what_is_no_allowed_signers_file_for_images(
    verifier: SshVerifier, key: Path, text: str, expected: list[tuple[str, str]]
) -> None:
    own = public(key)
    verifier.signers.write_bytes(text.replace("KEY", own).replace("BLOB", own.split()[1]).encode("latin-1"))
    assert found(verifier) == expected


@pytest.mark.parametrize("options", ["", f'namespaces="{NAMESPACE}"', 'namespaces="git"', 'namespaces="*,!trispark-*"'])
def test_who_may_sign_is_as_ssh_keygen_has_it(verifier: SshVerifier, key: Path, options: str) -> None:
    allow(verifier.signers, ("builder@example", key, options))
    made = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", str(key)], input=b"x", capture_output=True, check=True
    )
    try:
        signed = verifier.verify(b"x", made.stdout, "x").signer
    except TrisparkError:
        signed = None
    assert (found(verifier) == []) == (signed is not None)


def make_directory(path: Path) -> None:
    path.mkdir()


CANNOT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file or directory"),
    "a directory": (make_directory, "no regular file"),
    "a fifo": (os.mkfifo, "no regular file"),
    "huge": (lambda path: path.write_bytes(b"#" * (2**20 + 1)), "more than 1048576 bytes"),
}


@pytest.mark.parametrize("what", CANNOT)
@pytest.mark.parametrize("which", ["signers", "revoked"])
def test_a_file_that_cannot_be_read(verifier: SshVerifier, which: str, what: str) -> None:
    path = verifier.signers if which == "signers" else verifier.signers.with_name("revoked")
    path.unlink(missing_ok=True)
    make, observed = CANNOT[what]
    make(path)
    revoked = path if which == "revoked" else None
    assert found(SshVerifier(verifier.signers, SshKeygen(), revoked)) == [(which, observed)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# none yet\n", []),
        ("KEY of somebody\nKEY\n", []),
        ("garbage\nKEY\nssh-ed25519 AAAA\n", [("revoked line 1", FORM), ("revoked line 3", FORM)]),
    ],
)
def test_revoked_keys(verifier: SshVerifier, key: Path, text: str, expected: list[tuple[str, str]]) -> None:
    revoked = verifier.signers.with_name("revoked")
    revoked.write_text(text.replace("KEY", public(key)))
    assert found(SshVerifier(verifier.signers, SshKeygen(), revoked)) == expected


def test_a_key_revocation_list_is_read_by_ssh_keygen(verifier: SshVerifier, key: Path) -> None:
    revoked = verifier.signers.with_name("revoked")
    subprocess.run(
        ["ssh-keygen", "-q", "-k", "-f", str(revoked), str(key.with_suffix(".pub"))], check=True, capture_output=True
    )
    judged = SshVerifier(verifier.signers, SshKeygen(), revoked)
    assert found(judged) == []
    revoked.write_bytes(revoked.read_bytes()[:40])
    assert found(judged) == [("revoked", "one that ssh-keygen cannot read")]

"""``./trispark images attest`` and ``images provenance``: where an image comes from, said, signed and shown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trispark.cli import exit_codes
from trispark.cli.sites import choose_site
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption, SiteOption
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.images.provenance import Attested
    from trispark.images.signing import SshSigner, SshVerifier

REPO = Path(__file__).resolve().parents[3]


def images_attest(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Images that were built here.")],
    key: Annotated[
        Path | None,
        typer.Option(help="Key that signs: a private one, or a public one of an SSH agent's; else the site's."),
    ] = None,
    built: Annotated[Path | None, typer.Option(help="Directory of the builds' descriptions.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write statement and bill of materials of built images, and sign them where a key is configured."""
    from trispark.images.built import DIRECTORY, NAME, read_built
    from trispark.images.built_root import inventory_of_built
    from trispark.images.demanded import provenance_directory
    from trispark.images.provenance import attest

    terminal = Terminal()
    choice = choose_site(REPO, site, changing=False, offline=True)
    terminal.say(choice.line)
    wrong = [name for name in names if NAME.fullmatch(name) is None]
    if wrong:
        raise TrisparkError(
            "TS-PROVENANCE-BUILT",
            "this cannot be the name of an image",
            where="images attest",
            expected=f"a name like {NAME.pattern}",
            observed=wrong[0][:80],
            remedy="give the name under which it was built",
        )
    signer = _signer(key, choice.name)
    done = []
    for name in names:
        image, layers = read_built((built or REPO / DIRECTORY) / f"{name}.json")
        found = attest(image, inventory_of_built(layers, terminal.say), signer, provenance_directory(REPO))
        terminal.say(f"{name}: {image.manifest_digest}, statement sha256 {found.statement}, {_signed(signer, found)}")
        done.append(
            {
                "name": name,
                "digest": image.manifest_digest,
                "directory": str(found.directory),
                "statement_sha256": found.statement,
                "sbom_sha256": found.sbom,
                "signature_sha256": found.signature,
            }
        )
    if as_json:
        terminal.json({"attested": done})
    raise typer.Exit(exit_codes.OK)


def images_provenance(
    digest: Annotated[
        str, typer.Argument(metavar="DIGEST", help="sha256:..., a reference by digest, or the first 8 digits.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Judge the signature by the site's signers.")] = False,
    at: Annotated[
        datetime | None, typer.Option(help="When the signer's key must have been valid (UTC); now without it.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--from", help="Directory of statements; this project's own.")
    ] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where an image comes from; with --verify status 0 only when somebody whom the site trusts signed it."""
    from trispark.images.chain import chain, find_digest, lines
    from trispark.images.demanded import provenance_directory

    terminal = Terminal()
    choice = choose_site(REPO, site, changing=False, offline=True)
    terminal.say(choice.line)
    place = directory or provenance_directory(REPO)
    verifier = _verifier(choice.name, at) if verify else None
    found = chain(place, find_digest(place, digest), verifier=verifier)
    for line in lines(found):
        terminal.say(line)
    if as_json:
        terminal.json({"provenance": found})
    raise typer.Exit(exit_codes.OK)


def _signed(signer: SshSigner | None, found: Attested) -> str:
    if signer is not None:
        return f"signed with {signer.key}"
    if found.kept is not None:
        return f"signed before, by {found.kept}; that signature stays"
    lost = "; the signature from before was not of this statement, and is gone" if found.lost else ""
    return f"not signed: no key is configured{lost}"


def _signer(key: Path | None, site: str) -> SshSigner | None:
    from trispark.images.signing import SshKeygen, SshSigner
    from trispark.site import load_site

    if key is None:
        configured = load_site(REPO / "inventory" / site, images="optional").image_key
        key = Path(configured) if configured else None
    return None if key is None else SshSigner(key.expanduser(), SshKeygen())


def _verifier(site: str, at: datetime | None) -> SshVerifier:
    from datetime import UTC

    from trispark.images.demanded import verifier_of
    from trispark.site import load_site

    found = load_site(REPO / "inventory" / site, images="optional")
    verifier = verifier_of(found, at=None if at is None else at.replace(tzinfo=UTC))
    if verifier is None:
        raise TrisparkError(
            "TS-PROVENANCE-SIGNERS",
            "the site trusts no signers",
            where=str(found.path),
            expected="site_image_signers, an allowed_signers file beside hosts.yml",
            observed="nothing",
            remedy="name one in group_vars/all/site.yml (docs/images.md)",
        )
    return verifier

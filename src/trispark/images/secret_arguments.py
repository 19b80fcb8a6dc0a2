"""No secret among the arguments of a build: they are written down in build.json, in the image's statement and, by
Docker, in the history of the image, where everybody who has the image reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trispark.errors import TrisparkError
from trispark.support_redaction import names_a_secret, secrets_in


def secret_arguments(arguments: Mapping[str, str], where: str) -> Iterator[TrisparkError]:
    """TS-IMAGES-SECRET of each that is a secret by its name, or whose value has the shape of one. No message has a
    value. `where`: the place that gives them."""
    for name, value in sorted(arguments.items()):
        if names_a_secret(name) or secrets_in([value]):
            yield TrisparkError(
                "TS-IMAGES-SECRET",
                "a build argument looks like a secret, and arguments are written down for everybody",
                where=where,
                expected="no key, token or password among the arguments of a build",
                observed=name if names_a_secret(name) else f"a value of {name} that has the shape of one",
                remedy="remove it; what needs a login is fetched before a build and locked by its hash. Change a "
                "secret that was in a build.json, a statement or an image already",
            )


def require_no_secrets(arguments: Mapping[str, str], where: str) -> None:
    """Raises TS-IMAGES-SECRET for the first one."""
    for found in secret_arguments(arguments, where):
        raise found

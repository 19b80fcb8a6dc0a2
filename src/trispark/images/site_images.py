"""Which of its site's engine images a reference is, by the names that a configuration chooses them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trispark.allowlist import SITE_IMAGE


@dataclass(frozen=True)
class SiteImages:
    """References by digest. `engine`: site_engine_image, None where the site has none yet; `named`:
    site_engine_images."""

    engine: str | None
    named: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, references: Iterable[str]) -> str | None:
        """`site`, or a name of site_engine_images; None where no reference is one of them.

        The digest counts: under another registry's name are the same bits.
        """
        digests = {digest_of(reference) for reference in references} - {""}
        names = {SITE_IMAGE: self.engine or "", **dict(sorted(self.named.items()))}
        return next((name for name, reference in names.items() if digest_of(reference) in digests), None)

    def refused(self, reference: str) -> str:
        """Why `reference` is none of them, in words."""
        if self.engine is None:
            return f"{reference}, and the site names no image yet"
        if not self.named:
            return f"{reference}, which is not site_engine_image, the only one of this site"
        names = ", ".join(sorted(self.named))
        return f"{reference}, which is neither site_engine_image nor of site_engine_images ({names})"


def digest_of(reference: str) -> str:
    """`sha256:...` of a reference by digest; empty for any other."""
    return reference.partition("@")[2]

"""`./trispark support-bundle`: asks the nodes with a deadline and writes the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trispark.support_bundle import NODES_S, Bundle, make_bundle

if TYPE_CHECKING:
    from trispark.run_events import FailedEvent


def support_bundle(repo: Path, site: str, out: Path | None, *, anonymous: bool) -> Bundle:
    """Raises TS-SUPPORT-FILE alone."""

    def ask(directory: Path) -> Sequence[FailedEvent]:
        from trispark.runner import run_playbook

        extra = {"directory": str(directory)}
        # A node that does not take a connection in that time is no help now, and the others are not to wait for it.
        result = run_playbook(repo, "support", site=site, extra=extra, arguments=["-T", "5"], deadline_s=NODES_S)
        return result.failures

    return make_bundle(repo, site, ask, out, anonymous=anonymous)


def bundle_lines(bundle: Bundle) -> list[str]:
    """For a person."""
    lines = [f"{bundle.path} ({bundle.size} bytes, {bundle.files} files), for you alone"]
    lines += [f"missing: {name}: {why}" for name, why in sorted(bundle.missing.items())]
    return [*lines, "secrets are hidden by name and shape; look through it before you hand it on"]

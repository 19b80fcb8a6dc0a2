"""Which site a verb acts on: the one named, else the lab; where a fleet is configured beside it, no verb that changes
things guesses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from trispark.errors import TrisparkError
from trispark.play_lines import unconfigured

LAB = "lab"


@dataclass(frozen=True)
class SiteChoice:
    """The chosen site and the line that each verb prints first."""

    name: str
    line: str


def is_configured(inventory: Path, name: str) -> bool:
    """The lab always is; another site says ``site_configured: true`` in its ``group_vars/all/site.yml``."""
    if name == LAB:
        return True
    try:
        found = yaml.safe_load((inventory / name / "group_vars" / "all" / "site.yml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return False
    return isinstance(found, dict) and found.get("site_configured") is True


def known_sites(repo: Path) -> list[str]:
    """Names of the directories below ``inventory/``, the lab first."""
    inventory = repo / "inventory"
    found = [path for path in inventory.iterdir() if path.is_dir()] if inventory.is_dir() else []
    return [LAB, *sorted(path.name for path in found if path.name != LAB and not path.name.startswith("."))]


def require_known(repo: Path, named: str) -> None:
    """Raises TS-SITE-UNKNOWN."""
    sites = known_sites(repo)
    if named not in sites:
        raise TrisparkError(
            id="TS-SITE-UNKNOWN",
            what=f"no site {named}",
            where="inventory/",
            expected=f"one of {', '.join(sites)}",
            observed=named,
            remedy=f"name one of them, or ./trispark site init {named}",
        )


def choose_site(repo: Path, named: str | None, *, changing: bool, offline: bool = False) -> SiteChoice:
    """Raise TS-SITE-UNKNOWN, TS-SITE-UNCONFIGURED, or TS-SITE-AMBIGUOUS where a changing verb would have to guess.

    A verb that works ``offline`` reads files alone, and takes those of a site that is not configured as they are.
    """
    inventory = repo / "inventory"
    sites = known_sites(repo)
    if named:
        require_known(repo, named)
        if offline and not is_configured(inventory, named):
            return SiteChoice(named, f"site: {named} (not configured: its files as they are)")
        if not is_configured(inventory, named):
            raise unconfigured(named)
        return SiteChoice(named, f"site: {named}")
    others = [name for name in sites if name != LAB and is_configured(inventory, name)]
    if not others:
        return SiteChoice(LAB, f"site: {LAB}")
    if changing:
        raise TrisparkError(
            id="TS-SITE-AMBIGUOUS",
            what="this verb changes things and several sites are configured",
            where="inventory/",
            expected=f"--site or TRISPARK_SITE: one of {', '.join([LAB, *others])}",
            observed="neither",
            remedy="export TRISPARK_SITE=NAME for all that follows in this shell, or give this command --site NAME",
        )
    return SiteChoice(LAB, f"site: {LAB} (also configured: {', '.join(others)}; choose with --site or TRISPARK_SITE)")

"""Which variables each playbook takes by ``-e``, so that a misspelled one is refused and not passed over.

Ansible itself takes any name: `-e vlaue=2` would sweep every value. docs/reference.md has the same table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from trispark.errors import TrisparkError

_SHARDS: Final = ("repair", "limit_mib_s")
_TRIAL: Final = ("boots", "resume", "plan", "deadline", "drain_deadline_s", "trial_id", *_SHARDS)
_BOOT: Final = tuple(
    f"boot_{name}" for name in ("arm", "purpose", "bench", "stage", "trial", "slot", "generation", "check")
)
_STAGE: Final = ("feature", "value", *_TRIAL)

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "adopt": ("container", "confirm", "remove", "back_to"),
    "bench": (),
    "boot": ("feature", "value", *_BOOT),
    "campaign": ("campaign", *_SHARDS),
    "confirm": _TRIAL,
    "demo_incident": (),
    "drain": ("drain_deadline_s",),
    "images": (),
    "lab_down": ("purge",),
    "lab_up": (),
    "preflight": (),
    "promote": ("record", "revert"),
    "quality": ("reference",),
    "rollback": ("rollback_to",),
    "rounds": ("feature", "rounds"),
    "share": ("remove",),
    "shards": _SHARDS,
    "shards_inspect": (),
    "shards_verify": ("level", "limit_mib_s"),
    "site": _SHARDS,
    "stage_a": _SHARDS,
    **dict.fromkeys((f"stage_{letter}" for letter in "bcdefg"), _STAGE),
    "status": (),
    "stop": (),
    "verify": (),
}
"""By playbook, of those that are verbs. A campaign hands on what it is given to its trials."""

_OF_ANSIBLE: Final = "ansible_"
_OF_THE_SITE: Final = ("site_", "node_")
_CATALOG_KEY: Final = re.compile(r"[A-Z][A-Z0-9_]+")
_KEY: Final = re.compile(r"^\s*(?:- )?([a-z][a-z0-9_]*):", re.MULTILINE)


def require_variables(root: Path, site: str, playbook: str, given: Mapping[str, str]) -> None:
    """Raises TS-PLAY-VARIABLE for the first name that has no effect on this playbook, TS-PLAN-PLACE for a catalog key.

    Beside its own variables a playbook takes those of Ansible, the defaults of the roles, and what the site's files
    may hold; whether such a value may differ from theirs is judged by the playbook. One that is not in the table, such
    as a playbook of one's own, takes any.
    """
    own = VARIABLES.get(playbook)
    others = [name for name in given if name not in (own or ()) and not name.startswith(_OF_ANSIBLE)]
    if own is None or not others:
        return
    if keys := [name for name in others if _CATALOG_KEY.fullmatch(name)]:
        from trispark.catalog import load_catalog  # here: only a mistake needs it

        load_catalog(root).refuse_misplaced(dict.fromkeys(keys, "-e"))
    roles = _role_defaults(root)
    known = {*own, *roles, *_site_keys(root, site)}
    for name in others:
        if name not in known:
            raise unknown(playbook, name, given[name], known)


def unknown(playbook: str, name: str, value: str = "", known: Iterable[str] = ()) -> TrisparkError:
    """The refusal of one name; `known`: what the playbook takes beside its own."""
    own = VARIABLES[playbook]
    near = difflib.get_close_matches(name, sorted(own), n=1) or difflib.get_close_matches(name, sorted(known), n=1)
    return TrisparkError(
        "TS-PLAY-VARIABLE",
        f"{playbook} takes no variable {name}",
        where=f"-e {name}",
        expected=", ".join(own) or "no variable of its own",
        observed=name,
        remedy=f"-e {near[0]}={value}" if near else f"leave -e {name} out",
    )


def misspelled(playbook: str, seen: Iterable[str]) -> str | None:
    """The first of the names that a play sees which looks like one that the playbook takes, and is none; else None.

    For a run of ansible-playbook, where names of the inventory, of Ansible and of -e cannot be told apart.
    """
    own = VARIABLES.get(playbook, ())
    every = {name for names in VARIABLES.values() for name in names}
    for name in sorted(seen):
        ours = name in every or name.startswith((_OF_ANSIBLE, *_OF_THE_SITE))
        if not ours and difflib.get_close_matches(name, own, n=1, cutoff=0.8):
            return name
    return None


def _role_defaults(root: Path) -> set[str]:
    found: set[str] = set()
    for path in root.glob("roles/*/defaults/main.yml"):
        read: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        found.update(map(str, read or ()))
    return found


def _site_keys(root: Path, site: str) -> set[str]:
    """What the site's files hold, and the names that a site may hold; files that cannot be read hold nothing."""
    from trispark.site import NodeValues, Site

    found = {str(field.alias or f"site_{name}") for name, field in Site.model_fields.items()}
    found |= {str(field.alias or f"node_{name}") for name, field in NodeValues.model_fields.items()}
    for path in (root / "inventory" / site).rglob("*.yml"):
        try:
            found.update(_KEY.findall(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            continue
    return {name for name in found if name.startswith(_OF_THE_SITE)}

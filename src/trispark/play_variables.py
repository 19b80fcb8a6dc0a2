"""Which variables each playbook takes by ``-e``, so that a misspelled one is refused and not passed over.

Ansible itself takes any name: `-e vlaue=2` would sweep every value. docs/reference.md has the same table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.play_roles import role_defaults

_SHARDS: Final = ("repair", "limit_mib_s")
_TRIAL: Final = ("boots", "resume", "plan", "deadline", "drain_deadline_s", "trial_id", *_SHARDS)
_BOOT: Final = tuple(
    f"boot_{name}" for name in ("arm", "purpose", "bench", "stage", "trial", "slot", "generation", "check")
)
_STAGE: Final = ("feature", "value", *_TRIAL)
_RESTAGE: Final = "restage"

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "adopt": ("container", "confirm", "remove", "back_to"),
    "backup": (),
    "bench": (),
    "boot": ("feature", "value", _RESTAGE, *_BOOT),
    "campaign": ("campaign", *_SHARDS),
    "confirm": _TRIAL,
    "demo_incident": (),
    "drain": ("drain_deadline_s",),
    "images": (),
    "images_verify": (),
    "install": (),
    "lab_down": ("purge",),
    "lab_up": (),
    "preflight": (),
    "promote": ("record", "revert"),
    "prune": ("keep", "images"),
    "quality": ("reference",),
    "recover": (),
    "restore": ("backup", "node", "replace"),
    "rollback": ("rollback_to",),
    "rounds": ("feature", "rounds"),
    "share": ("remove",),
    "shards": _SHARDS,
    "shards_inspect": (),
    "shards_verify": ("level", "limit_mib_s"),
    "site": (*_SHARDS, _RESTAGE),
    "stage_a": (*_SHARDS, _RESTAGE),
    **dict.fromkeys((f"stage_{letter}" for letter in "bcdefg"), _STAGE),
    "status": ("status_deadline_s",),
    "stop": (),
    "support": ("directory",),
    "uninstall": ("confirm", "records"),
    "verify": (),
}
"""By playbook, of those that are verbs. A campaign hands on what it is given to its trials."""

_NEAR: Final = 0.85
_LETTERS: Final = 5
"""From how many letters on a name may be a misspelled one: `boot` of an inventory is no `boots`."""
_SITE_NAME: Final = "site_name"
_OF_ANSIBLE: Final = "ansible_"
_OF_THE_SITE: Final = ("site_", "node_")
_CATALOG_KEY: Final = re.compile(r"[A-Z][A-Z0-9_]+")
_KEY: Final = re.compile(r"^\s*(?:- )?([a-z][a-z0-9_]*):", re.MULTILINE)


def require_variables(root: Path, site: str, playbook: str, given: Mapping[str, str]) -> None:
    """Raises TS-PLAY-VARIABLE for the first name that has no effect on this playbook, TS-PLAN-PLACE for a catalog key.

    Beside its own variables a playbook takes those of Ansible, the defaults of the roles that it includes, and what the
    site's files may hold but their name; whether such a value may differ from theirs is judged by the playbook. One
    that is not in the table, such as a playbook of one's own, takes any.
    """
    own = VARIABLES.get(playbook)
    others = [name for name in given if name not in (own or ()) and not name.startswith(_OF_ANSIBLE)]
    if own is None or not others:
        return
    if keys := [name for name in others if _CATALOG_KEY.fullmatch(name)]:
        from trispark.catalog import load_catalog  # here: only a mistake needs it

        load_catalog(root).refuse_misplaced(dict.fromkeys(keys, "-e"))
    known = {*own, *role_defaults(root, playbook), *_site_keys(root, site)} - {_SITE_NAME}
    for name in others:
        if name not in known:
            raise unknown(playbook, name, given[name], known)


def unknown(playbook: str, name: str, value: str = "", known: Iterable[str] = ()) -> TrisparkError:
    """The refusal of a name given by -e; `known`: what the playbook takes beside its own."""
    own = VARIABLES[playbook]
    near = difflib.get_close_matches(name, sorted(own), n=1)
    # Among so many names a far one is another one.
    near = near or difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)
    return TrisparkError(
        "TS-PLAY-VARIABLE",
        f"{playbook} takes no variable {name}",
        where=f"-e {name}",
        expected=", ".join(own) or "no variable of its own",
        observed=name,
        remedy=f"--site {value}" if name == _SITE_NAME else f"-e {near[0]}={value}" if near else f"leave -e {name} out",
    )


def refuse_misspelled(playbook: str, seen: Iterable[str]) -> None:
    """Raises TS-PLAY-VARIABLE for the first of the names that a play sees which `misspelled` finds."""
    for name in sorted(seen):
        if near := misspelled(playbook, name):
            raise TrisparkError(
                "TS-PLAY-VARIABLE",
                f"{playbook} takes no variable {name}",
                where=f"{name}: -e or a variable of the inventory",
                expected=", ".join(VARIABLES[playbook]),
                observed=name,
                remedy=f"-e {near}=... if that was meant, else another name in the inventory",
            )


def misspelled(playbook: str, name: str) -> str | None:
    """The variable of the playbook that `name`, which is none, is nearly; else None.

    For a run of ansible-playbook, where names of the inventory, of Ansible and of -e cannot be told apart: it has to be
    nearer than where -e alone is judged.
    """
    every = {each for names in VARIABLES.values() for each in names}
    if name in every or name.startswith((_OF_ANSIBLE, *_OF_THE_SITE)) or len(name) < _LETTERS:
        return None
    own = VARIABLES.get(playbook, ())
    turned = [each for each in own if _is_turned(name, each)]
    return next(iter(turned or difflib.get_close_matches(name, own, n=1, cutoff=_NEAR)), None)


def _is_turned(name: str, other: str) -> bool:
    """Whether two letters side by side are turned round in it, and nothing else: `vlaue`, `value`."""
    if len(name) != len(other):
        return False
    differ = [index for index, (one, two) in enumerate(zip(name, other, strict=True)) if one != two]
    match differ:
        case [first, second]:
            return second == first + 1 and name[first] == other[second] and name[second] == other[first]
    return False


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

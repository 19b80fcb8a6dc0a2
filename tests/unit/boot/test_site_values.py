"""The playbooks must see the site's own values: `-e site_engram_dir=...` would verify one place and mount another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trispark.errors import TrisparkError
from trispark.site import load_site

ROOT = Path(__file__).resolve().parents[3]
SITE = load_site(ROOT / "inventory" / "lab", images="optional")
FILE = yaml.safe_load((ROOT / "inventory" / "lab" / "group_vars" / "all" / "site.yml").read_text(encoding="utf-8"))


def test_the_files_own_values_are_accepted_as_ansible_gives_them() -> None:
    SITE.refuse_other_values(FILE)
    SITE.refuse_other_values({**FILE, "site_start_deadline_s": float(FILE["site_start_deadline_s"])})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("site_engram_dir", "/srv/engram2"),
        ("site_start_deadline_s", 0),
        ("site_start_deadline_s", "60"),
        ("site_rendezvous_ports", [20000]),
        ("site_bench", {**FILE["site_bench"], "repetitions": 1}),
        ("site_bench", {"repetitions": 5}),
        ("site_engram_directory", "/srv/engram"),
        ("site_configured", 1),
    ],
)
def test_any_other_value_or_name_is_refused(name, value) -> None:
    with pytest.raises(TrisparkError) as caught:
        SITE.refuse_other_values({**FILE, name: value})
    assert caught.value.id == "TS-PLAN-PLACE"
    assert name in caught.value.what

"""What each playbook takes by -e: the table is what they read, and another name is refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.front.test_cli import FakePlaybooks, checkout, run_cli

from trispark.cli import lab as lab_module
from trispark.cli import verb
from trispark.cli.play import NO_VERB
from trispark.errors import TrisparkError
from trispark.play_roles import RUNS, role_defaults
from trispark.play_variables import VARIABLES, misspelled, refuse_misspelled, require_variables

__all__ = ["checkout", "run_cli"]  # fixtures
RunCli = Callable[..., tuple[int, list[str], str]]
ROOT = Path(__file__).resolve().parents[3]
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "playbooks").glob("*.yml")}
IMPORTS = {name: set(re.findall(r"import_playbook: (\w+)\.yml", text)) for name, text in TEXTS.items()}
BOOT = set(re.findall(r"\{\{ (\w+) \| default\(", TEXTS["boot"]))
GIVEN = {"given_stage", "feature"}
LEFT_OUT = {
    "stage_a": BOOT | GIVEN,
    "confirm": {"feature", "value"},
    "site": {"remove", *GIVEN},
    "rollback": {"restage"},
}
"""The boot of stage A is the baseline's, a confirmation is of all that was promoted, a site needs its share, and a
rollback stages nothing; what given.yml reads is set by who imports it, or refused there."""
CONFIGURED = {"site_configured"}


def read(name: str) -> set[str]:
    """Variables without a role's or the site's prefix that a playbook, with those it imports, has a default for."""
    registered = {each for text in TEXTS.values() for each in re.findall(r"register: (\w+)", text)}
    found = set(re.findall(r"(?<![\w.])([a-z]\w*) \| default\(", TEXTS[name])) - registered - CONFIGURED
    found = {each for each in found if not each.startswith(("site_", "node_"))}
    role = yaml.safe_load((ROOT / "roles/engram/defaults/main.yml").read_text(encoding="utf-8"))
    wanted = {
        "shards": ("engram_repair", "engram_limit_mib_s"),
        "shards_verify": ("engram_limit_mib_s",),
    }.get(name, ())
    for default in wanted:
        found |= set(re.findall(r"\{\{ (\w+) \| default", role[default]))
    imported = set().union(*(read(each) for each in IMPORTS[name]))
    return found | (imported - LEFT_OUT.get(name, set()))


@pytest.mark.parametrize("name", sorted(set(VARIABLES) - {"campaign"}))
def test_the_table_is_what_the_playbook_reads(name: str) -> None:
    assert set(VARIABLES[name]) == {each for each in read(name) if not each.startswith(("engram_", "ansible_"))}


def test_every_verb_has_its_row() -> None:
    pieces = {name for name, text in TEXTS.items() if any(each in text for each in NO_VERB)}
    assert len(pieces) >= 5
    assert set(VARIABLES) == set(TEXTS) - pieces


@pytest.mark.parametrize(
    ("playbook", "given", "remedy"),
    [
        ("stage_b", "vlaue=2", "-e value=2"),
        ("stage_c", "featre=wo_a", "-e feature=wo_a"),
        ("stage_a", "feature=wo_a", "leave -e feature out"),
        ("shards", "repiar=true", "-e repair=true"),
        ("stage_c", "site_trial_bots=6", "-e site_trial_boots=6"),
        ("shards", "checkpoint_share_range=4", "-e checkpoint_share_ranges=4"),
        ("verify", "DSPARK_BLOK_SIZE=5", "leave -e DSPARK_BLOK_SIZE out"),
        ("lab_down", "purg=true", "-e purge=true"),
        ("rounds", "engram_repair=true", "leave -e engram_repair out"),
        ("rounds", "engram_repiar=true", "leave -e engram_repiar out"),
        ("verify", "engram_action=ensure", "leave -e engram_action out"),
        ("bench", "bench_plan={}", "leave -e bench_plan out"),
        ("status", "checkpoint_share_seed=a", "leave -e checkpoint_share_seed out"),
        ("stage_b", "site_name=sparks", "--site sparks"),
        ("status", "site_nam=sparks", "leave -e site_nam out"),
    ],
)
def test_a_name_without_effect_is_refused_with_the_nearest_one(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, playbook: str, given: str, remedy: str
) -> None:
    monkeypatch.setattr(verb, "REPO", ROOT)
    monkeypatch.setattr(lab_module, "lab_alone", lambda repo, say: pytest.fail("it was begun"))
    playbooks = FakePlaybooks({})
    status, _, err = run_cli("play", playbook, "--site", "lab", "-e", given, "--check", playbooks=playbooks)
    assert (status, playbooks.played) == (2, [])
    assert err.startswith(f"trispark: TS-PLAY-VARIABLE: {playbook} takes no variable {given.split('=')[0]}; ")
    assert err.endswith(f"; do: {remedy}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("playbook", "name"),
    [
        *((playbook, name) for playbook, names in VARIABLES.items() for name in names),
        ("stage_c", "site_trial_boots"),
        ("shards", "checkpoint_share_read_deadline_s"),
        ("shards", "checkpoint_share_seed"),
        ("shards", "site_engram_limit_mib_s"),
        ("shards", "engram_repair"),
        ("rounds", "engine_counters_deadline_s"),
        ("stage_b", "engine_counters_deadline_s"),
        ("campaign", "preflight_minimum_free_bytes"),
        ("images", "image_references"),
        ("lab_up", "lab_deadline_s"),
        ("boot", "node_mem_fraction"),
        ("preflight", "ansible_user"),
        ("of_my_own", "anything"),
    ],
)
def test_what_has_an_effect_is_taken(playbook: str, name: str) -> None:
    require_variables(ROOT, "lab", playbook, {name: "1"})


def test_a_key_of_the_catalog_says_where_it_is_tried() -> None:
    with pytest.raises(TrisparkError, match=r"TS-PLAN-PLACE: .*-e feature=block_size"):
        require_variables(ROOT, "lab", "shards", {"DSPARK_BLOCK_SIZE": "4"})


@pytest.mark.parametrize(
    ("seen", "found", "near"),
    [
        (("featre",), "featre", "feature"),
        (("feature", "vlaue"), "vlaue", "value"),
        (("deadine",), "deadine", "deadline"),
        (("drain_deadline",), "drain_deadline", "drain_deadline_s"),
        (("feature", "value", "boots", "plan", "rounds", "record"), None, None),
        (("inventory_dir", "play_hosts", "groups", "omit", "trial_stage", "site_boots", "ansible_value"), None, None),
        (("boot", "planet", "valley", "vault", "baseline", "drain_wait_s", "evlua"), None, None),
    ],
)
def test_a_play_alone_finds_what_looks_like_a_variable_of_a_trial(
    seen: tuple[str, ...], found: str | None, near: str | None
) -> None:
    if found is None:
        refuse_misspelled("stage_b", seen)
        return
    assert misspelled("stage_b", found) == near
    with pytest.raises(TrisparkError) as caught:
        refuse_misspelled("stage_b", seen)
    assert (caught.value.id, caught.value.observed) == ("TS-PLAY-VARIABLE", found)
    assert caught.value.where == f"{found}: -e or a variable of the inventory"
    assert caught.value.remedy.startswith(f"-e {near}=...")


def test_a_play_that_runs_others_is_named_with_them() -> None:
    """What RUNS says is what the modules of these playbooks begin."""
    for name, module in (("trial", "trispark_walk"), ("campaign", "trispark_campaign")):
        assert module in TEXTS[name]
    assert set(RUNS) == {name for name, text in TEXTS.items() if re.search(r"trispark_(walk|campaign):", text)}
    assert set(RUNS["campaign"]) == {name for name, text in TEXTS.items() if "import_playbook: trial.yml" in text}


def test_what_only_some_inclusions_set_stays_open(tmp_path: Path) -> None:
    files = {
        "playbooks/one.yml": """
- import_playbook: two.yml
- hosts: all
  roles: [listed, {role: dressed, vars: {dressed_b: 1}}]
""",
        "playbooks/two.yml": """
- hosts: all
  vars: {of_play: 1}
  tasks:
    - vars: {of_block: 1}
      block:
        - ansible.builtin.include_role: {name: included}
          vars: {of_task: 1}
        - ansible.builtin.include_role: {name: "{{ any }}"}
""",
        "roles/included/defaults/main.yml": "{of_play: 0, of_block: 0, of_task: 0, of_caller: 0}",
        "roles/included/tasks/main.yml": "- ansible.builtin.import_role: {name: nested}",
        "roles/nested/defaults/main.yml": "{nested_a: 0}",
        "roles/nested/meta/main.yml": "{dependencies: [needed]}",
        "roles/needed/defaults/main.yml": "{needed_a: 0}",
        "roles/listed/defaults/main.yml": "{listed_a: 0}",
        "roles/dressed/defaults/main.yml": "{dressed_a: 0, dressed_b: 0}",
        "roles/unused/defaults/main.yml": "{unused_a: 0}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert role_defaults(tmp_path, "one") == {"of_caller", "nested_a", "needed_a", "listed_a", "dressed_a"}
    assert role_defaults(tmp_path, "none") == set()

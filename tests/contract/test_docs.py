"""The reference pages say what the sources say, and nothing else."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from pathlib import Path

import pytest
import typer
import yaml

from trispark.cli import exit_codes
from trispark.cli.app import app
from trispark.fleet_state import NAMES
from trispark.play_variables import VARIABLES
from trispark.reference import PAGE, collect, page
from trispark_node.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
MARKDOWN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md")])


def table(heading: str) -> dict[str, str]:
    """{first cell without back ticks: second cell} of the table below `## heading`."""
    section = re.split(r"^## ", REFERENCE.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    return {row[0].strip().strip("`"): row[1].strip() for row in rows}


def check_ids() -> set[str]:
    """Ids given to results of the gates and of the comparison before a launch, `check_id` of the action plugins, and
    what a role's assertion begins with."""
    found: set[str] = set()
    for path in ROOT.glob("roles/*/tasks/*.yml"):
        found.update(re.findall(r"fail_msg: (?:>-\s+)?\"?([a-z_]+\.[a-z_]+): ", path.read_text(encoding="utf-8")))
    judges = ("src/trispark/gates.py", "src/trispark/images/launch_gate.py")
    for path in [*(ROOT / name for name in judges), *ROOT.glob("plugins/action/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "check_id")]
            for value in given:
                text = value.value if isinstance(value, ast.Constant) else None
                if isinstance(value, ast.JoinedStr) and isinstance(value.values[0], ast.Constant):
                    text = f"{value.values[0].value}<id>"
                if isinstance(text, str) and re.fullmatch(r"[a-z_]+\.([a-z_]+|<id>)", text):
                    found.add(text)
    return {name for name in found if not name.startswith("trispark.")}


def commands(group: typer.Typer, prefix: str = "") -> set[str]:
    own = {
        prefix + (command.name or (command.callback.__name__ if command.callback else ""))
        for command in group.registered_commands
    }
    below = [
        commands(each.typer_instance, f"{prefix}{each.name} ")
        for each in group.registered_groups
        if each.typer_instance
    ]
    return own.union(*below)


def test_a_verb_is_found_by_its_name() -> None:
    """`images lock` is images_lock, in cli/images.py or a file whose name begins so; a verb without a group is of that
    name, in cli/app.py or a file of its own."""
    place = "trispark.cli."
    for command in app.registered_commands:
        assert command.callback is not None
        name, module = command.callback.__name__, command.callback.__module__
        verb = (command.name or name).replace("-", "_")
        assert name == verb or (verb, name) == ("test", "run_tests"), "pytest would take `test_...` for its own"
        assert module in (f"{place}app", f"{place}{verb}"), module
    for each in app.registered_groups:
        assert each.typer_instance is not None
        for command in each.typer_instance.registered_commands:
            assert command.callback is not None
            assert command.callback.__name__ == f"{each.name}_{command.name}"
            module = command.callback.__module__
            assert module == f"{place}{each.name}" or module.startswith(f"{place}{each.name}_"), module


def test_the_page_of_error_ids_is_the_sources() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(ROOT), "run: python -m trispark.reference --write"


def test_every_error_id_has_a_meaning() -> None:
    entries = collect(ROOT)
    assert len(entries) > 100
    assert [name for name, entry in entries.items() if not entry.whats] == []


def test_no_document_names_an_error_id_that_the_code_does_not_have() -> None:
    entries = collect(ROOT)
    areas = {name.split("-")[1] for name in entries}
    for path in MARKDOWN:
        for name in re.findall(r"`(TS-[A-Z0-9-]*[A-Z0-9])(?:-…)?`", path.read_text(encoding="utf-8")):
            assert name in entries or name.removeprefix("TS-") in areas, f"{path.name}: {name}"


def test_every_file_of_a_node_is_in_the_table() -> None:
    """Whatever the agent's layout names lies in a place that docs/architecture.md lists."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Files", 1)[1]
    listed = {name.split("/")[0] for name in re.findall(r"`([^`]+)`", text)}
    layout = Layout(Path("/state"))
    names = {
        getattr(layout, name).relative_to(layout.root).parts[0]
        for name, kind in vars(Layout).items()
        if isinstance(kind, cached_property)
    }
    assert {"generations", "current", "records"} <= names
    assert {*names, layout.lock("state").name} <= listed


def test_exit_codes() -> None:
    assert table("Exit codes of `./trispark`") == {str(code): text for code, text in exit_codes.MEANING.items()}


def test_every_state_of_the_fleet_is_described() -> None:
    shown = dict(re.findall(r"^\| `([A-Z]+)` \| ([^|]+) \| [^|]+ \|$", REFERENCE, flags=re.MULTILINE))
    assert shown == NAMES


def test_every_verb_is_in_the_table() -> None:
    assert set(table("Verbs of `./trispark`")) == commands(app)


def test_every_playbook_is_in_the_table() -> None:
    assert set(table("Playbooks")) == {path.stem for path in ROOT.glob("playbooks/*.yml")}


def test_what_each_playbook_takes_is_in_the_table() -> None:
    listed: dict[str, list[str]] = {}
    for names, takes in table("Variables").items():
        for name in re.findall(r"\w+", names):
            assert name not in listed, name
            listed[name] = re.findall(r"`(\w+)`", takes)
    assert listed == {name: list(takes) for name, takes in VARIABLES.items() if takes}


def test_what_is_shared_names_the_playbooks_that_import_it() -> None:
    """The headers `# Shared by a.yml, b.yml and c.yml:` and, of those pages, the same sentence of the reference."""
    importers: dict[str, set[str]] = {}
    for path in ROOT.glob("playbooks/*.yml"):
        for name in re.findall(r"import_playbook: (\w+\.yml)", path.read_text(encoding="utf-8")):
            importers.setdefault(name, set()).add(path.name)
    described = table("Playbooks")
    shared = 0
    for path in ROOT.glob("playbooks/*.yml"):
        header = re.search(r"^# Shared by ([^:]+):", path.read_text(encoding="utf-8"), re.MULTILINE)
        if header is None:
            continue
        shared += 1
        assert set(re.findall(r"\w+\.yml", header[1])) == importers[path.name], path.name
        said = set(re.findall(r"`(\w+)`", described[path.stem].partition("shared by")[2]))
        assert said == {name.removesuffix(".yml") for name in importers[path.name]}, path.name
    assert shared >= 2


def durations() -> dict[str, str]:
    """Last cell of the rows of verbs, and of playbooks as `play NAME`; "the same" is that of stage B."""
    found = {}
    for heading, prefix in (("Verbs of `./trispark`", ""), ("Playbooks", "play ")):
        section = re.split(r"^## ", REFERENCE.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
        for line in section.splitlines():
            if row := re.match(r"\| `([a-z_ ]+)` \|.*\| ([^|]*) \|$", line):
                found[prefix + row[1]] = row[2].strip()
    return {name: found["play stage_b"] if text == "the same" else text for name, text in found.items()}


def test_the_readme_gives_the_durations_of_the_reference() -> None:
    known = durations()
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Day to day", 1)[1]
    rows = re.findall(r"^\| `\./trispark ([a-z_ ]+?)(?: [^a-z`][^`]*)?`.*\| ([^|]*) \|$", text, re.MULTILINE)
    rows = [(name.removesuffix(" -e feature"), takes) for name, takes in rows]
    assert {"demo", "lab up", "lab down", "play stage_a", "play stage_c", "rollback", "report"} <= {
        name for name, _ in rows
    }
    assert {name: takes for name, takes in rows if takes != known[name]} == {}
    for verb, playbook in (
        ("lab up", "lab_up"),
        ("lab down", "lab_down"),
        ("status", "status"),
        ("bench run", "bench"),
        ("bench rounds", "rounds"),
        ("quality", "quality"),
    ):
        assert known[verb] == known[f"play {playbook}"], verb


def test_the_readme_names_the_verbs_of_every_day() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Day to day", 1)[1].split("\n## ", 1)[0]
    wanted = {"report", "compare", "records diff", "quality", "bench run", "bench rounds", "lab shell", "play confirm"}
    assert {name for name in wanted if not re.search(rf"`(\./trispark )?{name}[ `]", text)} == set()


def test_every_check_id_is_in_the_table() -> None:
    found = check_ids()
    assert {"boot.ready", "canary.text", "engram.packed", "identity.image_digest"} <= found
    assert {"after_load.<id>", "boot.ranks"} <= found
    assert set(table("Check ids")) == found


def test_every_evidence_id_is_in_the_table() -> None:
    evidence = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text(encoding="utf-8"))["evidence"]
    assert table("Evidence ids") == {name: entry["proves"] for name, entry in evidence.items()}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_glossary_explains_the_words_that_the_catalog_and_records_use() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    words = set(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE))
    wanted = {
        "baseline",
        "boot",
        "bundle",
        "evidence",
        "feature",
        "generation",
        "good",
        "rank",
        "record",
        "site",
        "trial",
    }
    assert {*wanted, "resolved configuration", "verdict", "epoch"} <= words
    assert len(words) == len(re.findall(r"^\| (?!word|---)", text, re.MULTILINE)) + 1, "a word is explained once"

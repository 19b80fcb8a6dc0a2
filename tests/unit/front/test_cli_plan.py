"""plan, features and the verbs of records through the command line: last line, exit status, never a traceback."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from built_images import allow, built, make_key, write_root
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark import cli
from trispark.cli import exit_codes, verb
from trispark.cli import lab as lab_module
from trispark.cli.plan import parse_sets, plan_lines, refusal_line
from trispark.cli.play import playbook_lines
from trispark.cli.terminal import Terminal
from trispark.errors import TrisparkError
from trispark.images.provenance import attest
from trispark.images.root_inventory import inventory_of
from trispark.images.signing import SshKeygen, SshSigner
from trispark.plan import kept_plan, plan_id

REPOSITORY = Path(__file__).resolve().parents[3]
Answer = tuple[int, list[str], str]


def ask(root: Path, *arguments: str) -> Answer:
    """The command line on the checkout `root`: status, lines of standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, verb.REPO, os.environ.pop("TRISPARK_SITE", None)
    sys.argv, verb.REPO = ["trispark", *arguments], root
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = cli.main()
    finally:
        sys.argv, verb.REPO = before[0], before[1]
        if before[2] is not None:
            os.environ["TRISPARK_SITE"] = before[2]
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return status, out.getvalue().splitlines(), err.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with all that is planned from, before `lab up`."""
    directory = tmp_path_factory.mktemp("checkout")
    for name in ("experiments", "inventory", "templates", "adapters"):
        shutil.copytree(REPOSITORY / name, directory / name)
    (directory / "inventory/lab/group_vars/all/images.yml").unlink(missing_ok=True)
    return directory


def test_a_plan_is_shown_and_its_json_is_the_last_line(root: Path) -> None:
    status, out, err = ask(root, "plan", "stage_c", "-e", "feature=wo_a", "--json")
    assert (status, err) == (0, "")
    plan = json.loads(out[-1])
    assert out[0] == "site: lab"
    assert out[1].startswith(f"plan {plan['id']}: stage c, wo_a: ")
    assert "  engine      lab, image: not in the inventory yet" in out
    assert "  difference  DSV41_WO_A_W8: 0 -> 1" in out
    assert f"  candidate   {plan['candidate']['generation']}" in out
    assert "  evidence    candidate must show wo_a.calls, wo_a.twins on all ranks" in out
    assert plan["id"] == plan_id(plan)
    assert ask(root, "plan", "c", "-e", "feature=wo_a", "--json")[1][-1] == out[-1]
    assert kept_plan(root, "lab", plan["id"]) == plan
    assert (root / ".trispark" / "lab" / "plans").stat().st_mode & 0o777 == 0o700


def test_a_plan_says_what_a_boot_would_judge_of_signatures(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".trispark"))
    engine, client = (built(repository=f"r:5000/{name}", manifest_digest=f"sha256:{name * 64}") for name in "ab")
    images = copy / "inventory/lab/group_vars/all/images.yml"
    images.write_text(
        f"site_engine_image: {engine.reference}\nsite_bench_image: {client.reference}\n", encoding="utf-8"
    )
    asked = ("plan", "c", "-e", "feature=wo_a", "--json")
    _, before, _ = ask(copy, *asked)
    assert not any(line.startswith("note: ") for line in before), "nothing is demanded"
    with images.open("a") as file:
        file.write("site_image_signers: signers\n")
    key = make_key(tmp_path, "builder")
    allow(images.parents[2] / "signers", ("builder@example", key, ""))
    store = copy / ".trispark/provenance"

    def said() -> str:
        status, out, err = ask(copy, *asked)
        assert (status, err, json.loads(out[-1])["id"]) == (0, "", json.loads(before[-1])["id"])
        (line,) = [line for line in out if line.startswith("note: ")]
        return line

    head = "note: the site demands signed images, judged when a boot is planned; "
    arms = "engine of the baseline, engine of the candidate"
    none = "would be refused as it is now, TS-PROVENANCE-NONE: nothing says where this image comes from"
    assert said() == f"{head}{arms}: {none} ({store / ('a' * 64)}); load client: {none} ({store / ('b' * 64)})"
    inventory = inventory_of(write_root(tmp_path / "root"))
    attest(engine, inventory, SshSigner(key, SshKeygen()), store)
    attest(client, inventory, None, store)
    unsigned = "would be refused as it is now, TS-PROVENANCE-UNSIGNED: the statement is not signed"
    assert said() == f"{head}{arms}: signed by builder@example; load client: {unsigned} ({store / ('b' * 64)})"
    (images.parents[2] / "signers").unlink()
    assert "TS-PROVENANCE-SIGNERS" in said()


def test_refusals_come_after_the_plan_with_status_3(root: Path) -> None:
    status, out, err = ask(root, "plan", "c", "-e", "feature=wo_a", "--set", "EP_SIZE=2", "--set", "NOPE=1", "--json")
    assert status == exit_codes.REFUSED
    assert "  difference  DSV41_WO_A_W8: 0 -> 1" in out
    assert "  what-if     EP_SIZE=2, in both arms" in out
    assert [line.split(": ")[1] for line in err.splitlines()] == ["TS-ENV-UNLISTED", "TS-PLAN-EXCLUDED"]
    assert [refusal["id"] for refusal in json.loads(out[-1])["refusals"]] == ["TS-ENV-UNLISTED", "TS-PLAN-EXCLUDED"]


def test_a_site_that_is_not_configured_can_be_planned_for(root: Path) -> None:
    _, out, _ = ask(root, "plan", "c", "-e", "feature=wo_a", "--site", "sparks", "--json")
    assert out[0] == "site: sparks (not configured: its files as they are)"
    assert json.loads(out[-1])["site"] == "sparks"
    assert ask(root, "play", "boot", "--site", "sparks")[0] == exit_codes.REFUSED


def test_a_sweep_is_shown_value_by_value(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy)

    def add(features: dict[str, Any]) -> None:
        entry = json.loads(json.dumps(features["engram_prefetch"]))
        for name in ("sets", "check_boot"):
            entry.pop(name, None)
        features["a_sweep"] = {**entry, "kind": "sweep", "sweep": {"name": "MAX_RUNNING_REQUESTS", "values": [2, 3, 4]}}

    change_features(copy, add)
    status, out, err = ask(copy, "plan", "c", "-e", "feature=a_sweep", "--json")
    assert (status, err) == (0, "")
    plans = json.loads(out[-1])["plans"]
    assert [plan["value"] for plan in plans] == ["2", "3"]
    assert len([line for line in out if line.startswith("plan p")]) == 2
    one = json.loads(ask(copy, "plan", "c", "-e", "feature=a_sweep", "-e", "value=3", "--json")[1][-1])
    assert one == plans[1]
    status, _, err = ask(copy, "plan", "c", "-e", "feature=a_sweep", "-e", "value=9")
    assert (status, err.split(": ")[1]) == (exit_codes.USAGE, "TS-FEATURE-VALUE")


def change_features(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = root / "experiments" / "features.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(data["features"])
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["plan"], 2, ""),
        (["plan", "c"], 2, "TS-FEATURE-MISSING"),
        (["plan", "x"], 2, "TS-STAGE-UNKNOWN"),
        (["plan", "c", "-e", "feature"], 2, "TS-CLI-EXTRA"),
        (["plan", "c", "-e", "colour=red"], 2, "TS-CLI-EXTRA"),
        (["plan", "c", "-e", "feature=wo_a", "-e", "feature=engram_prefetch"], 2, "TS-CLI-EXTRA"),
        (["plan", "stage_c", "feature=wo_a"], 2, "write -e feature=wo_a"),
        (["plan", "stage_c", "-e", "feature=wo_a", "boots=6"], 2, "write -e boots=6"),
        (["play", "stage_c", "feature=wo_a"], 2, "write -e feature=wo_a"),
        (["plan", "c", "-e", "feature=nope"], 2, "TS-FEATURE-UNKNOWN"),
        (["plan", "d", "-e", "feature=wo_a"], 3, "TS-FEATURE-STAGE"),
        (["plan", "c", "-e", "EP_SIZE=1"], 3, "TS-PLAN-PLACE"),
        (["plan", "c", "-e", "feature=wo_a", "--set", "EP_SIZE"], 2, "TS-CLI-SET"),
        (["plan", "c", "-e", "feature=wo_a", "--set", "=1"], 2, "TS-CLI-SET"),
        (["plan", "c", "-e", "feature=wo_a", "--set", "A=1", "--set", "A=2"], 2, "TS-CLI-SET"),
        (["plan", "c", "--site", "nope"], 2, "TS-SITE-UNKNOWN"),
        (["features", "--stage", "x"], 2, "TS-STAGE-UNKNOWN"),
        (["report", "x"], 2, "TS-REPORT-UNKNOWN"),
        (["report", "x", "--format", "pdf"], 2, "TS-REPORT-FORMAT"),
        (["compare", "a", "b"], 2, "TS-COMPARE-BOOT"),
        (["records", "diff", "1", "2"], 2, "TS-RECORD-UNKNOWN"),
        (["records", "replay", "1"], 2, "TS-RECORD-UNKNOWN"),
        (["records", "show", "1"], 2, "TS-RECORD-UNKNOWN"),
        (["records", "export"], 3, "TS-RECORD-NONE"),
        (["records", "prune"], 2, ""),
        (["records", "prune", "--keep", "-1"], 2, ""),
        (["records", "prune", "--keep", "x"], 2, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_and_refusals(root: Path, arguments: list[str], status: int, named: str) -> None:
    found, _, err = ask(root, *arguments)
    assert found == status
    if named:
        assert named in err
        assert err.count("\n") == 1


def test_sets_are_pairs_each_name_once() -> None:
    assert parse_sets(["A=1", "B=x=y", "A=1", "C="]) == {"A": "1", "B": "x=y", "C": ""}


ARGUMENT = st.text(st.characters(codec=None, exclude_characters="\0"), max_size=10)
NAMES = st.sampled_from(
    ["feature", "value", "EP_SIZE", "DSV41_WO_A_W8", "HOST", "MAX_RUNNING_REQUESTS", "_", "-", "--"]
)
VALUES = st.sampled_from(["", "wo_a", "engram_prefetch", "wo_a_mid", "1", "2", "0.98", "-1", "yes", "\n", "\udc80"])
PAIR = st.one_of(
    ARGUMENT,
    st.builds("{}={}".format, st.one_of(NAMES, ARGUMENT), st.one_of(VALUES, ARGUMENT)),
    st.builds("feature={}".format, VALUES),
)


@settings(max_examples=60)
@given(
    stage=st.one_of(st.sampled_from(["a", "b", "c", "d", "stage_c", "stage_d"]), ARGUMENT),
    extra=st.lists(PAIR, max_size=3),
    sets=st.lists(PAIR, max_size=3),
    site=st.sampled_from(["lab", "sparks", "nope", ""]),
    as_json=st.booleans(),
)
def test_whatever_the_arguments_are_the_status_is_0_2_or_3(
    root: Path, stage: str, extra: list[str], sets: list[str], site: str, as_json: bool
) -> None:
    arguments = ["plan", stage, "--site", site, *(["--json"] if as_json else [])]
    arguments += [word for pair in extra for word in ("-e", pair)] + [word for pair in sets for word in ("--set", pair)]
    status, out, err = ask(root, *arguments)
    assert status in (exit_codes.OK, exit_codes.USAGE, exit_codes.REFUSED)
    assert (status == exit_codes.OK) is (err == "") or "--help" in arguments
    if as_json and out and status != exit_codes.USAGE and "--help" not in arguments:
        assert isinstance(json.loads(out[-1]), dict)


def test_features_say_what_each_is_and_where_it_cannot_be_run(root: Path) -> None:
    status, out, _ = ask(root, "features", "--json")
    entries = json.loads(out[-1])["features"]
    assert status == 0
    assert {"wo_a", "engram_prefetch"} <= {entry["feature"] for entry in entries}
    by_name = {entry["feature"]: entry for entry in entries}
    assert by_name["wo_a"]["sets"] == {"DSV41_WO_A_W8": 1}
    assert "lab" in by_name["wo_a"]["engines"]
    _, of_stage, _ = ask(root, "features", "--stage", "stage_d", "--json")
    assert all("d" in entry["stages"] for entry in json.loads(of_stage[-1])["features"])
    text = "\n".join(out[:-1])
    assert "sets DSV41_WO_A_W8=1" in text


def with_images(root: Path, **images: str) -> None:
    """site_engine_image and further ones of sparks, the first under the name `engine`."""
    path = root / "inventory/sparks/group_vars/all/site.yml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["site_engine_image"] = images.pop("engine", f"registry.example/engine@sha256:{'a' * 64}")
    path.write_text(yaml.safe_dump({**values, "site_engine_images": images}), encoding="utf-8")


def test_features_of_a_site_are_refused_as_its_plans_are(root: Path, tmp_path: Path) -> None:
    """What one verb says can be tried, the other must not refuse for the site's images."""
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy)
    own = {"TS-PLAN-IMAGE-MISSING", "TS-PLAN-IMAGE", "TS-PLAN-BUILD"}
    released = "sha256:" + "e" * 64
    path = copy / "experiments/engine_builds.yml"
    builds = yaml.safe_load(path.read_text(encoding="utf-8"))
    builds["builds"]["sglang==0.5.22"]["images"] = [released]
    path.write_text(yaml.safe_dump(builds), encoding="utf-8")
    seen: set[str] = set()
    for images in (
        {},
        {"canary": f"registry.example/c@sha256:{'c' * 64}"},
        {"engine": f"registry.example/engine@{released}", "canary": f"registry.example/c@sha256:{'c' * 64}"},
        {"canary": f"registry.example/c@{released}"},
    ):
        with_images(copy, **images)
        entries = json.loads(ask(copy, "features", "--site", "sparks", "--json")[1][-1])
        assert entries["site"] == "sparks"
        assert str(copy) not in json.dumps(entries)
        for entry in entries["features"]:
            ids = [refusal["id"] for refusal in entry["refusals"]]
            seen.update(ids)
            if entry["feature"] not in ("canary_image", "padded_attention_skip", "block_verify", "wo_a_mid"):
                continue  # of each kind of answer one: a plan takes a second
            assert entry["engines"]["sglang"] is None
            chosen = (entry["stages"][0], "-e", f"feature={entry['feature']}")
            plan = json.loads(ask(copy, "plan", *chosen, "--site", "sparks", "--json")[1][-1])
            assert [each["id"] for each in plan["refusals"] if each["id"] in own] == ids, entry["feature"]
    assert seen == own


def test_a_feature_whose_image_the_site_lacks_says_so(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy)
    line = "not at this site: the site has no engine image named canary; do: set site_engine_images.canary, by digest"
    with_images(copy)
    assert line in [each.strip() for each in ask(copy, "features", "--site", "sparks")[1]]
    with_images(copy, canary=f"registry.example/c@sha256:{'c' * 64}")
    status, out, _ = ask(copy, "features", "--site", "sparks")
    assert status == 0
    assert "canary_image" in {each.split()[0] for each in out}
    assert not [each for each in out if "not at this site" in each]
    assert not [each for each in ask(copy, "features", "--site", "lab")[1] if "not at this site" in each]
    assert "TS-SITE-UNKNOWN" in ask(copy, "features", "--site", "nowhere")[2]


def test_a_reason_that_holds_everywhere_is_said_once(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy)
    reason = {"available": False, "unavailable_reason": "no kernel yet", "unavailable_on": {}}
    change_features(copy, lambda features: features["engram_prefetch"].update(reason))
    _, out, _ = ask(copy, "features")
    assert [line.strip() for line in out if "no kernel yet" in line] == ["not anywhere: no kernel yet"]


def test_validate_names_every_problem_with_status_3(root: Path, tmp_path: Path) -> None:
    status, out, err = ask(root, "validate", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out[-1]) == {"site": "lab", "problems": []}
    assert ask(root, "validate", "--site", "sparks")[0] == 0
    copy = tmp_path / "checkout"
    shutil.copytree(root, copy)
    for file, old, new in (
        ("baseline.yml", "TP_SIZE: 3", "TP_SIZE: x"),
        ("stages.yml", "trial: false", "trial: maybe"),
    ):
        path = copy / "experiments" / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    status, out, err = ask(copy, "validate", "--json")
    assert status == exit_codes.REFUSED
    assert [line.split(": ")[1] for line in err.splitlines()] == ["TS-CATALOG-SCHEMA"]
    assert len(json.loads(out[-1])["problems"]) == 1
    path.write_text(path.read_text(encoding="utf-8").replace("maybe", "false"), encoding="utf-8")
    assert "TP_SIZE has a wrong value" in ask(copy, "validate")[2]


def test_plan_and_features_import_nothing_heavy() -> None:
    """What is imported decides how long an offline verb takes."""
    code = (
        "import sys; from trispark.cli import main\n"
        "for argv in (['plan', 'c', '-e', 'feature=wo_a'], ['features'], ['validate'], ['records', 'list']):\n"
        "    sys.argv = ['trispark', *argv]; main()\n"
        "heavy = {'ansible', 'ansible_runner', 'docker', 'jsonschema', 'numpy', 'rich', 'trispark.runner'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'lab'}", "TRISPARK_SITE": "lab"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def recorded(root: Path, tmp_path: Path) -> Path:
    """A checkout with the records and kept logs of two boots."""
    return make_recorded(root, tmp_path / "checkout")


def make_recorded(root: Path, checkout: Path) -> Path:
    from trispark.catalog import load_catalog
    from trispark.gate_result import GateResult
    from trispark.project import ProjectState
    from trispark.records import RecordCache, build_boot_record, head_of
    from trispark.resolve import resolve, resolve_arms
    from trispark.site import load_site

    shutil.copytree(root, checkout)
    shutil.rmtree(checkout / ".trispark", ignore_errors=True)
    digest = "sha256:" + "a" * 64
    images = checkout / "inventory/lab/group_vars/all/images.yml"
    images.write_text(f"site_engine_image: r:5000/e@{digest}\nsite_bench_image: r:5000/b@{digest}\n", encoding="utf-8")
    site, catalog = load_site(checkout / "inventory" / "lab"), load_catalog(checkout)
    cache = RecordCache(checkout / ".trispark" / "lab" / "records")
    arms = resolve_arms(site, catalog, "wo_a", None, checkout)
    assert arms.baseline.id == resolve(site, catalog, None, None, checkout).id
    previous = None
    for number, (arm, side) in enumerate((("baseline", arms.baseline), ("candidate", arms.candidate)), start=1):
        boot = f"b2026010{number}T000000Z-000{number}"
        record = build_boot_record(
            record_id=boot,
            site="lab",
            resolution=side,
            allowlist=catalog.allowlist,
            project=ProjectState("0.1.0", "f" * 40, False),
            requested={
                "stage": "c",
                "feature": "wo_a" if arm == "candidate" else None,
                "arm": arm,
                "trial": "t1",
                "purpose": "trial",
            },
            boot_id=boot,
            epoch=number,
            observations={},
            timings={"started_at": "x", "ended_at": "y", "phases": {}},
            gates=[GateResult("canary.text", None, True, "42", "42")],
            bench=None,
            summary=None,
            outcome={"state": "valid", "reason": "all gates passed", "good": False},
            previous=previous,
        )
        cache.add(record)
        previous = head_of(record)
        logs = checkout / ".trispark" / "lab" / "boots" / boot
        logs.mkdir(parents=True)
        (logs / "rank0.log").write_text("a log\n", encoding="utf-8")
    return checkout


def test_records_diff(recorded: Path) -> None:
    status, out, _ = ask(recorded, "records", "diff", "1", "2", "--json")
    assert status == 0
    assert "  DSV41_WO_A_W8 of ranks 0, 1, 2: 0 and 1" in out
    found = json.loads(out[-1])
    assert (found["first"], found["second"]) == ("b20260101T000000Z-0001", "b20260102T000000Z-0002")
    assert {"name": "feature", "first": None, "second": "wo_a"} in found["differences"]["requested"]
    assert "no difference" in ask(recorded, "records", "diff", "1", "1")[1][-1]


def test_records_replay_prints_plan_and_command(recorded: Path) -> None:
    status, out, err = ask(recorded, "records", "replay", "2", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out[-1])
    assert found["command"].startswith("./trispark play boot --site lab -e boot_arm=candidate")
    assert f"  {found['command']}" in out
    assert found["plan"]["candidate"]["generation"] == found["generation"]
    (recorded / "inventory/lab/group_vars/all/images.yml").unlink()
    status, _, err = ask(recorded, "records", "replay", "2")
    assert status == exit_codes.REFUSED
    assert err.startswith("trispark: TS-RECORD-REPLAY: ")
    assert "image is gone" in err


def test_records_verify(recorded: Path) -> None:
    status, out, _ = ask(recorded, "records", "verify", "--json")
    assert status == 0
    assert json.loads(out[-1])["records"] == 2
    assert out[1].startswith("2 records are whole, the newest is 2 (b20260102T000000Z-0002) with ")
    first = next((recorded / ".trispark" / "lab" / "records").glob("000001-*"))
    first.write_text(first.read_text(encoding="utf-8").replace("all gates passed", "all was fine"), encoding="utf-8")
    status, _, err = ask(recorded, "records", "verify")
    assert status == exit_codes.FAILED
    assert "TS-RECORD-CHAIN" in err
    assert "record 2 (b20260102T000000Z-0002)" in err
    first.write_text("{", encoding="utf-8")
    assert "TS-RECORD-READ" in ask(recorded, "records", "verify")[2]


def test_records_verify_of_nothing(root: Path) -> None:
    assert ask(root, "records", "verify")[:2] == (0, ["site: lab", "0 records are whole"])


def test_records_export_names_its_file_by_the_newest_record(recorded: Path, tmp_path: Path) -> None:
    status, out, _ = ask(recorded, "records", "export", "--json")
    assert status == 0
    path = Path(json.loads(out[-1])["path"])
    assert path.parent == recorded / ".trispark" / "lab" / "export"
    assert path.name.startswith("lab-2-")
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert "trispark-lab/boots/b20260101T000000Z-0001/rank0.log" in archive.getnames()
    status, _, err = ask(recorded, "records", "export")
    assert (status, "TS-RECORD-EXPORT" in err) == (exit_codes.REFUSED, True)
    target = tmp_path / "mine.tar.gz"
    assert ask(recorded, "records", "export", "--to", str(target))[0] == 0
    assert target.read_bytes() == path.read_bytes()


def test_records_prune_only_says_so_without_yes(recorded: Path) -> None:
    boots = recorded / ".trispark" / "lab" / "boots"
    status, out, _ = ask(recorded, "records", "prune", "--keep", "1", "--json")
    assert status == 0
    assert json.loads(out[-1])["would_remove"] == [{"boot": "b20260101T000000Z-0001", "files": 1}]
    assert "would remove the logs of 1 boots" in out[-2]
    assert len(list(boots.iterdir())) == 2
    status, out, _ = ask(recorded, "records", "prune", "--keep", "1", "--yes", "--json")
    assert json.loads(out[-1])["removed"] == [{"boot": "b20260101T000000Z-0001", "files": 1}]
    assert [path.name for path in boots.iterdir()] == ["b20260102T000000Z-0002"]
    assert ask(recorded, "records", "verify")[0] == 0


def test_records_show_names_the_nearest_ids(recorded: Path) -> None:
    status, _, err = ask(recorded, "records", "show", "b20260102T000000Z-0009")
    assert status == exit_codes.USAGE
    assert "near: b20260102T000000Z-0002" in err
    assert err.count("\n") == 1


def test_play_help_lists_the_playbooks_with_their_first_line() -> None:
    _, out, _ = ask(REPOSITORY, "play", "--help")
    text = " ".join(" ".join(out).split())
    lines = playbook_lines(REPOSITORY / "playbooks")
    assert len(lines) > 10
    for line in lines:
        assert " ".join(line.split()) in text
    names = {line.split()[0] for line in lines}
    assert {"boot", "rollback", "stage_a", "status"} <= names
    assert not {"name_site", "run_boot", "run_verify", "trial"} & names


def test_play_help_wraps_a_line_below_its_text() -> None:
    _, out, _ = ask(REPOSITORY, "play", "--help")
    listed = out[out.index(" Playbooks:") + 1 :]
    column = 2 + max(len(line.split()[0]) for line in playbook_lines(REPOSITORY / "playbooks")) + 2
    wrapped = [line for line in listed if line and not line[2:3].strip()]
    assert column > 10
    assert len(wrapped) > 10
    assert all(line[:column].isspace() and not line[column].isspace() for line in wrapped)


def test_lab_shell_shows_that_a_command_may_follow() -> None:
    _, out, _ = ask(REPOSITORY, "lab", "shell", "--help")
    assert any(line.strip().endswith("[-- COMMAND...]") for line in out if "Usage" in line)


@pytest.mark.parametrize(
    ("value", "observed", "remedy"),
    [
        ("7", "7, which is ruled out: no time is spent on 7 before 5 shows", "-e value=5"),
        ("1", "1", "-e value=2"),
        ("4.4", "4.4", "-e value=4"),
        ("five", "five", "-e value=2"),
    ],
)
def test_a_value_that_is_not_offered_has_its_reason_and_the_nearest_one(
    root: Path, value: str, observed: str, remedy: str
) -> None:
    status, _, err = ask(root, "plan", "b", "-e", "feature=block_size", "-e", f"value={value}")
    assert status == exit_codes.USAGE
    assert f"; observed: {observed}" in err
    assert err.endswith(f"; do: {remedy}\n")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["c", "-e", "featre=wo_a"], "-e feature=wo_a"),
        (["c", "-e", "feature=wo_a", "-e", "boot=6"], "-e boots=6"),
        (["c", "-e", "feature=wo_b"], "-e feature=wo_a"),
        (
            ["c", "-e", "feature=blok_size"],
            "./trispark plan b -e feature=block_size shows it, ./trispark play stage_b -e feature=block_size tries it",
        ),
        (["c", "-e", "feature=nope"], "name one of them"),  # none is a control, and in another stage
        (["c", "-e", "feature=zzz"], "name one of them"),
    ],
)
def test_a_plan_that_is_misspelled_says_the_nearest_name(root: Path, arguments: list[str], remedy: str) -> None:
    assert ask(root, "plan", *arguments)[2].endswith(f"; do: {remedy}\n")


def test_a_refused_plan_is_marked_and_says_once_what_to_correct(root: Path) -> None:
    _, out, err = ask(root, "plan", "c", "-e", "feature=wo_a", "--set", "DSPARK_BLOCK_SIZE=99")
    assert " (refused, no trial is made of it): stage c" in out[1]
    assert err.endswith("; do: correct the value of DSPARK_BLOCK_SIZE\n")
    assert "refused" not in ask(root, "plan", "c", "-e", "feature=wo_a")[1][1]


def test_status_without_a_lab_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module, "lab_is_down", lambda repo: True)
    status, out, err = ask(root, "status", "--json")
    assert status == exit_codes.REFUSED
    assert err.startswith("trispark: TS-LAB-DOWN: the lab is not up; where: ")
    assert err.endswith("; do: ./trispark lab up\n")
    assert json.loads(out[-1])["error"]["id"] == "TS-LAB-DOWN"


def plan_with(**parts: Any) -> dict[str, Any]:
    plan = {
        "id": "p0",
        "refusals": [],
        "stage": "c",
        "feature": "wo_a",
        "value": None,
        "title": "twins",
        "engine": "lab",
        "image": "x",
        "promoted": None,
        "baseline": {"generation": None, "image": "x"},
        "candidate": None,
        "base": [],
        "overrides": {},
        "difference": {},
        "decision": None,
        "boots": [],
        "cells": [],
        "hours": {"boots": 0, "per_boot_min": 1, "total": 0},
        "evidence": {"baseline": {"must": {}, "must_not": {}}},
        "budget": None,
        "notes": [],
    }
    return {**plan, **parts}


def test_a_budget_is_shown_with_the_better_bundle() -> None:
    arm = {"verdict": "edge", "lines": ["weights 1.0", "short by 2"], "better_bundle": "b"}
    budget = {"model": "gb10", "verdict": "edge", "better_bundle": "b", "baseline": arm, "candidate": arm}
    lines = list(plan_lines(plan_with(budget=budget)))
    assert "  budget      edge by the memory model gb10, better: b" in lines
    assert "              short by 2" in lines
    assert "  baseline    cannot be resolved" in lines


def test_evidence_of_some_ranks_names_them() -> None:
    must = {"0": ["a.b"], "1": [], "2": []}
    none: dict[str, list[str]] = {"0": [], "1": [], "2": []}
    evidence = {"baseline": {"must": none, "must_not": none}, "candidate": {"must": must, "must_not": none}}
    assert "  evidence    candidate must show a.b on rank 0" in list(plan_lines(plan_with(evidence=evidence)))


def test_a_refusal_is_shown_as_every_error() -> None:
    error = TrisparkError("TS-A-B", "what", "here", "x", "y", "z")
    assert refusal_line(error.as_dict()) == str(error)


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "\\udc80 ä"), ("ascii", "\\udc80 \\xe4")])
def test_what_a_terminal_cannot_show_is_shown_by_its_code(encoding: str, shown: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    terminal = Terminal(stream, stream)
    terminal.say("\udc80 ä")
    terminal.error("\udc80")
    terminal.json({"a": "\udc80 ä"})
    lines = raw.getvalue().decode(encoding).splitlines()
    assert lines[:2] == [shown, "trispark: \\udc80"]
    assert json.loads(lines[2])["a"] == "\udc80 ä"


class Verdicts:
    """A trial's record as `reporting.trial` reads it."""

    record: dict[str, Any] = {  # noqa: RUF012 # never changed
        "site": "lab",
        "requested": {"stage": "c", "feature": "wo_a", "value": None},
        "outcome": {
            "verdict": "INCONCLUSIVE",
            "reason": "two boots decide nothing",
            "differences": {},
            "restored": "g1",
        },
    }


@pytest.mark.parametrize(
    ("states", "value", "expected"),
    [
        (
            ("valid", "valid"),
            None,
            [
                "keep the baseline; six boots an arm can decide; the second command shows what two of the boots ran:",
                "  ./trispark play stage_c --site lab -e feature=wo_a -e boots=6",
                "  ./trispark records diff b0 b1 --site lab",
            ],
        ),
        (
            ("valid",),
            "5",
            [
                "keep the baseline; six boots an arm can decide:",
                "  ./trispark play stage_c --site lab -e feature=wo_a -e value=5 -e boots=6",
            ],
        ),
        (
            ("valid",) * 8,
            None,
            [
                "keep the baseline; try again with what the reason names; "
                "the second command shows what two of the boots ran:",
                "  ./trispark play stage_c --site lab -e feature=wo_a",
                "  ./trispark records diff b0 b1 --site lab",
            ],
        ),
        (
            ("valid", "invalid"),
            "5",
            [
                "read the kept logs of b1, then try again:",
                "  ./trispark play stage_c --site lab -e feature=wo_a -e value=5",
            ],
        ),
    ],
)
def test_an_undecided_trial_says_what_to_do_with_commands_on_lines_of_their_own(
    states: tuple[str, ...], value: str | None, expected: list[str]
) -> None:
    from trispark.reporting import RecordedTrial, trials

    boots = [
        {"boot_id": f"b{number}", "outcome": {"state": state, "reason": "x"}, "observed": {"ranks": []}}
        for number, state in enumerate(states)
    ]
    record = {**Verdicts.record, "requested": {**Verdicts.record["requested"], "value": value}}

    def lines(of: dict[str, Any]) -> list[str]:
        return trials("t1", [RecordedTrial(of, "path", boots, [])], "", restored=True).lines

    said = lines(record)
    assert [said[0].partition("; do: ")[2], *said[1 : len(expected)]] == expected
    assert len(said[0]) < 240
    kept = {**record, "outcome": {**record["outcome"], "verdict": "KEEP"}}
    assert not [line for line in lines(kept) if "do: " in line or "./trispark" in line]


def keep_compiled_in(root: Path, environment: dict[str, str]) -> str:
    code = (
        "import sys; from pathlib import Path; from trispark.startup import keep_compiled\n"
        f"print(keep_compiled(Path({str(root)!r})), sys.pycache_prefix, sys.dont_write_bytecode)\n"
        "import trispark.canonical"
    )
    full = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=full, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_compiled_python_is_kept_where_none_is_written_beside_the_sources(tmp_path: Path) -> None:
    cache = tmp_path / ".trispark" / "pycache"
    assert keep_compiled_in(tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}) == f"True {cache} False"
    assert list(cache.rglob("canonical.*.pyc"))
    assert cache.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".trispark").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("environment", "prepare"),
    [
        ({}, lambda root: None),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/elsewhere"}, lambda root: None),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, lambda root: (root / ".trispark").write_text("in the way")),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, lambda root: (root / ".trispark").mkdir() or shared(root)),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            lambda root: ((root / ".trispark").mkdir(), (root / ".trispark" / "pycache").symlink_to(root)),
        ),
    ],
    ids=["not-asked", "another-cache", "a-file", "writable-for-others", "a-link"],
)
def test_compiled_python_is_not_kept_elsewhere(
    tmp_path: Path, environment: dict[str, str], prepare: Callable[[Path], object]
) -> None:
    prepare(tmp_path)
    if not environment:
        environment = {"PYTHONPYCACHEPREFIX": str(tmp_path / "own")}
    assert keep_compiled_in(tmp_path, environment).startswith("False ")


def shared(root: Path) -> None:
    (root / ".trispark" / "pycache").mkdir()
    (root / ".trispark" / "pycache").chmod(0o777)


def test_stats_verbs_need_no_site_and_end_with_the_goals(root: Path) -> None:
    status, out, err = ask(root, "stats", "simulate", "--trials", "100", "--json")
    assert (status in (exit_codes.OK, exit_codes.FAILED), err) == (True, "")
    assert out[0] == "site: none is needed"
    found = json.loads(out[-1])
    assert list(found)[-5:] == ["false_keep", "false_keep_family", "coverage", "power", "boots_mean"]
    assert (status == exit_codes.FAILED) is bool(found["missed"])
    status, _, err = ask(root, "stats", "simulate", "--noise", "pink")
    assert (status, err.split(":")[1]) == (exit_codes.USAGE, " TS-STATS-NOISE")


def test_stats_campaign_shows_every_pair(root: Path) -> None:
    data = Path(__file__).parents[1] / "controller/data/campaign.csv"
    status, out, _ = ask(root, "stats", "campaign", str(data), "--twins", "f1-final,f2-final-reuse", "--json")
    found = json.loads(out[-1])
    assert (status, found["keep"], len(found["pairs"])) == (0, 0, 45)
    assert ask(root, "stats", "campaign", str(data), "--twins", "x")[0] == exit_codes.USAGE
    assert ask(root, "stats", "campaign", str(root / "README.md"), "--twins", "a,b")[0] == exit_codes.REFUSED


def test_stats_floor_shows_equal_boots_and_keeps_them_for_plans(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = ask(recorded, "stats", "floor")
    assert (status, err.split(":")[1]) == (exit_codes.REFUSED, " TS-STATS-FLOOR")
    from trispark import noise_floor

    metric = {"sd": 0.004, "floors": {"4": 0.007, "6": 0.006}, "no_harm": {"4": 0.008, "6": 0.007}}
    text = json.dumps(
        {"site": "lab", "generation": "g0", "boots": list("abcd"), "records": "0", "metrics": {"c4.agg_tps": metric}}
    )
    monkeypatch.setattr(noise_floor, "measure_noise", lambda *_: noise_floor.SiteNoise.model_validate_json(text))
    status, out, _ = ask(recorded, "stats", "floor", "--json")
    assert status == 0
    found = json.loads(out[-1])
    assert [(row["metric"], row["boots"]) for row in found["power"]] == [("c4.agg_tps", 4), ("c4.agg_tps", 6)]
    assert not (recorded / ".trispark/lab/noise.json").exists()
    before = json.loads(ask(recorded, "plan", "c", "-e", "feature=wo_a", "-e", "boots=6", "--json")[1][-1])
    status, out, _ = ask(recorded, "stats", "floor", "--keep")
    assert out[-1] == "kept: .trispark/lab/noise.json"
    after = json.loads(ask(recorded, "plan", "c", "-e", "feature=wo_a", "-e", "boots=6", "--json")[1][-1])
    assert [each["floor"] for each in after["decision"]["primaries"]] == [None, None, 0.006]
    assert after["id"] != before["id"]


def test_a_plan_shows_how_it_is_decided(root: Path) -> None:
    lines = ask(root, "plan", "c", "-e", "feature=engram_prefetch", "-e", "boots=6")[1]
    decision = [line.removeprefix("  decision    ") for line in lines if line.startswith("  decision")]
    assert decision[0].startswith("4+4 boots at 0.7 %, then 6+6 boots at 1.8 %; order ABBA ")
    assert "c4.agg_tps (at least 1 % better, not 1 % worse)" in decision[1]
    assert "c1-prose.ttft_s (not 5 % worse)" in decision[2]
    assert decision[3] == "c1-prose.engram_wait_us_per_lookup must go lower"
    short = ask(root, "plan", "c", "-e", "feature=wo_a", "-e", "boots=1")[1]
    assert [line for line in short if "none, too few boots; order AB" in line]


@pytest.mark.parametrize("given", ["5", "six", "1.5", "-1", "9" * 5000])
def test_a_number_of_boots_that_no_trial_has_is_shown_as_it_was_given(root: Path, given: str) -> None:
    status, _, err = ask(root, "plan", "c", "-e", "feature=wo_a", "-e", f"boots={given}")
    assert (status, err.split(":")[1]) == (exit_codes.USAGE, " TS-PLAN-BOOTS")
    assert f"; observed: {given[:80]}; " in err


def test_a_confirmation_of_nothing_is_refused(root: Path) -> None:
    status, _, err = ask(root, "plan", "confirm", "-e", "boots=6")
    assert status == 3
    assert "TS-CONFIRM-NOTHING" in err

"""What a site demands of its images is judged before a boot, and what was judged then is all that a way back needs."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from built_images import allow, built, make_key, write_root

from trispark.boot_outcome import record_boot
from trispark.boot_plan import Moment, Project, plan_arm, plan_stored
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.images.demanded import files_of, provenance_directory
from trispark.images.provenance import attest
from trispark.images.root_inventory import inventory_of
from trispark.images.signing import SshKeygen, SshSigner
from trispark.project import ProjectState
from trispark.records import RecordCache
from trispark.site import Site, load_site
from trispark_node import cli
from trispark_node.canonical import sha256_hex
from trispark_node.layout import Layout
from trispark_node.node import Node
from trispark_node.provenance_files import SIGNATURE, STATEMENT

REPOSITORY = Path(__file__).resolve().parents[3]
NODES = ("spark0", "spark1", "spark2")
STATUSES = {name: {"epoch": 1, "current": None, "engine": None} for name in NODES}
MOMENT = Moment(datetime(2026, 1, 2, tzinfo=UTC), "ffff")
BENCH = "sha256:" + "e" * 64


class World:
    """A project whose site trusts `builder@example`, and the images that were attested."""

    def __init__(self, project: Path, site: Site, catalog: Catalog, scratch: Path) -> None:
        self.root = project
        self.key = make_key(scratch, "builder")
        allow(site.path / "signers", ("builder@example", self.key, ""))
        bench = str(site.bench_image).partition("@")[0]
        self.site = site.model_copy(update={"image_signers": "signers", "bench_image": f"{bench}@{BENCH}"})
        self.catalog = catalog
        self.inventory = inventory_of(write_root(scratch / "root"))

    @property
    def whole(self) -> Project:
        return Project(self.root, self.site, self.catalog)

    def attest(self, image: str, *, signed: bool = True) -> Path:
        repository, _, digest = image.partition("@")
        signer = SshSigner(self.key, SshKeygen()) if signed else None
        described = built(repository=repository, manifest_digest=digest)
        return attest(described, self.inventory, signer, provenance_directory(self.root)).directory

    def boot(self, **asked: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "stage": "", "feature": "", "value": "", "arm": "", "purpose": "serve", "trial": "", "measure": False,
            "statuses": STATUSES, "misplaced": {}, "seen_site": {}, "moment": MOMENT,
        }  # fmt: skip
        return plan_arm(self.whole, **{**given, **asked})


@pytest.fixture
def own_site(site: Site, tmp_path: Path) -> Site:
    """A copy that a test may change."""
    return load_site(Path(shutil.copytree(site.path, tmp_path / "inventory" / "lab")))


@pytest.fixture
def world(project: Path, own_site: Site, catalog: Catalog, tmp_path: Path) -> World:
    (tmp_path / "keys").mkdir()
    return World(Path(shutil.copytree(project, tmp_path / "project")), own_site, catalog, tmp_path / "keys")


def refused(call: Callable[[], Any]) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call()
    return caught.value


def test_where_nothing_is_demanded_nothing_is_looked_at(world: World) -> None:
    world.site = world.site.model_copy(update={"image_signers": None})
    assert world.boot(measure=True)["provenance"] == []
    world.site = world.site.model_copy(update={"image_signers": ""})
    assert world.boot()["provenance"] == []


def test_a_boot_names_what_was_judged_of_each_image(world: World) -> None:
    assert refused(world.boot).id == "TS-PROVENANCE-NONE"
    engine, bench = str(world.site.engine_image), str(world.site.bench_image)
    directory = world.attest(engine)
    (fact,) = world.boot()["provenance"]
    assert (fact["image"], fact["signer"]) == (engine, "builder@example")
    assert fact["statement_sha256"] == sha256_hex((directory / STATEMENT).read_bytes())
    # A measurement runs another image, too.
    assert refused(lambda: world.boot(measure=True)).id == "TS-PROVENANCE-NONE"
    world.attest(bench)
    assert [each["image"] for each in world.boot(measure=True)["provenance"]] == [engine, bench]


@pytest.mark.parametrize("purpose", ["serve", "trial"])
def test_a_boot_of_choice_needs_the_signature_anew(world: World, purpose: str) -> None:
    directory = world.attest(str(world.site.engine_image), signed=False)
    asked = {"purpose": purpose, "arm": "baseline"}
    assert refused(lambda: world.boot(**asked)).id == "TS-PROVENANCE-UNSIGNED"
    world.attest(str(world.site.engine_image))
    assert world.boot(**asked)["provenance"]
    (directory / SIGNATURE).unlink()
    assert refused(lambda: world.boot(**asked)).id == "TS-PROVENANCE-UNSIGNED"


def record(world: World, plan: dict[str, Any]) -> dict[str, Any]:
    state = ProjectState("0.1.0", "e" * 40, False)
    now = datetime(2026, 1, 2, 0, 1, tzinfo=UTC)
    return record_boot(state, "lab", world.catalog.allowlist, plan, {}, None, now)


def test_the_record_points_to_it_and_the_end_of_a_trial_needs_no_more(world: World) -> None:
    directory = world.attest(str(world.site.engine_image))
    plan = world.boot(purpose="trial", arm="baseline")
    made = record(world, plan)
    assert made["provenance"] == plan["provenance"]
    back = {"purpose": "restore", "arm": "baseline"}
    assert world.boot(**back)["provenance"] == []
    RecordCache(world.root / ".trispark" / "lab" / "records").add(made)
    for path in directory.iterdir():
        path.unlink()
    (world.site.path / "signers").unlink()
    assert world.boot(**back)["provenance"] == plan["provenance"]


def test_a_rollback_takes_what_the_nodes_know(world: World) -> None:
    world.attest(str(world.site.engine_image))
    plan = world.boot()
    (fact,) = plan["provenance"]
    answer = {"generation": plan["generation"], "resolved": plan["resolved"], "provenance": fact}

    def back(**others: Any) -> dict[str, Any]:
        stored = {name: {**answer, **others.get(name, {})} for name in NODES}
        return plan_stored(purpose="rollback", stored=stored, statuses=STATUSES, moment=MOMENT)

    assert back()["provenance"] == [fact]
    assert record(world, back())["provenance"] == [fact]
    # Nodes that know nothing, or of something else, hold up no way back.
    assert back(spark1={"provenance": None})["provenance"] == []
    assert back(spark2={"provenance": {**fact, "signer": "other"}})["provenance"] == []
    assert back(**{name: {"provenance": None} for name in NODES})["provenance"] == []


def test_files_that_change_between_plan_and_boot_are_not_sent(world: World) -> None:
    directory = world.attest(str(world.site.engine_image))
    (fact,) = world.boot()["provenance"]
    assert files_of(world.root, fact).keys() == {path.name for path in directory.iterdir()}
    (directory / SIGNATURE).unlink()
    assert refused(lambda: files_of(world.root, fact)).id == "TS-PROVENANCE-CHANGED"


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("site_image_signers", "image_signers", True),
        ("site_image_signers", "keys/image_signers", True),
        ("site_image_signers", "", True),
        ("site_image_signers", "/etc/signers", False),
        ("site_image_signers", "../signers", False),
        ("site_image_revoked", "../revoked", False),
        ("site_image_key", "~/.ssh/key", True),
        ("site_image_key", "/keys/key", True),
        ("site_image_key", "key", False),
        ("site_image_key", "~root/key", False),
        ("site_image_key", "~/../key", False),
    ],
)
def test_the_places_of_signers_and_keys(own_site: Site, key: str, value: str, fits: bool) -> None:
    file = own_site.path / "group_vars" / "all" / "provenance.yml"
    file.write_text(f"{key}: '{value}'\n")
    if fits:
        assert getattr(load_site(own_site.path), key.removeprefix("site_")) == value
    else:
        assert refused(lambda: load_site(own_site.path)).id == "TS-SITE-SCHEMA"


def test_a_fact_of_the_library_is_one_of_the_agent(world: World) -> None:
    """What is sent has the agent's shape, and hashes that it computes itself."""
    from trispark_node.fields import Fields
    from trispark_node.provenance import StoreRequest

    world.attest(str(world.site.engine_image))
    (fact,) = world.boot()["provenance"]
    asked = StoreRequest.parse(Fields({"fact": fact, "files": files_of(world.root, fact)}, "request"))
    assert asked.fact.json() == fact
    assert replace(asked.fact, signer="other").id != asked.fact.id


class Agents:
    """The agent of one node in a directory, called as over Ansible's connection."""

    def __init__(self, root: Path) -> None:
        self.node = Node(Layout(root))
        self.calls: list[dict[str, Any]] = []

    def __call__(self, command: str, in_data: bytes, **_how: Any) -> dict[str, Any]:
        request = json.loads(in_data)
        self.calls.append(request)
        assert "provenance-store" in command
        request.pop("owner", None)  # the fleet lock is another test's
        answer, code = cli.answer(self.node, "provenance-store", json.dumps(request))
        return {"rc": code, "stdout": json.dumps(answer), "stderr": ""}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, world: World, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`trispark_provenance` on one node; `store.agents` is that node."""
    spec = importlib.util.spec_from_file_location("action", REPOSITORY / "plugins/action/trispark_provenance.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda self, tmp, task_vars: {})
    agents = Agents(tmp_path / "node")

    def run(plan: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = SimpleNamespace(args={"root": str(world.root), "plan": plan}, check_mode=check, diff=False)
        action._low_level_execute_command = agents
        found: dict[str, Any] = action.run(None, {})
        return found

    run.agents = agents  # type: ignore[attr-defined]
    return run


def test_every_node_gets_the_files_once(world: World, store: Any) -> None:
    world.attest(str(world.site.engine_image))
    world.attest(str(world.site.bench_image))
    plan = world.boot(measure=True)
    checked = store(plan, check=True)
    assert checked["changed"]
    assert not store.agents.node.layout.root.exists()
    done = store(plan)
    assert (done["changed"], done["stored"], len(done["stored"])) == (True, checked["stored"], 2)
    for fact, stored in zip(plan["provenance"], done["stored"], strict=True):
        directory = store.agents.node.layout.provenance_of(fact["image"].rpartition(":")[2]) / stored
        assert sha256_hex((directory / STATEMENT).read_bytes()) == fact["statement_sha256"]
    assert not store(plan)["changed"]


def test_a_way_back_sends_nothing_and_neither_does_a_site_that_demands_nothing(world: World, store: Any) -> None:
    world.attest(str(world.site.engine_image))
    plan = world.boot()
    for purpose in ("rollback", "restore", "verify"):
        assert store({**plan, "purpose": purpose}) == {"changed": False, "stored": []}
    assert store({**plan, "provenance": []}) == {"changed": False, "stored": []}
    assert store.agents.calls == []


def test_what_cannot_be_sent_or_stored_ends_the_boot_before_it_begins(world: World, store: Any) -> None:
    directory = world.attest(str(world.site.engine_image))
    plan = world.boot()
    (directory / SIGNATURE).unlink()
    result = store(plan)
    assert (result["failed"], result["check_id"]) == (True, "TS-PROVENANCE-CHANGED")
    world.attest(str(world.site.engine_image))
    store.agents.node.layout.root.write_text("no directory\n")
    assert store(plan)["failed"]

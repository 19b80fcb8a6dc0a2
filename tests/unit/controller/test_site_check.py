"""`site check` names every problem, `site init` writes the template whole or not at all; both ask nobody."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from built_images import allow, make_key
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.resolve import resolve
from trispark.site import Site, judge_site, load_site
from trispark.site_check import SiteReport, check_site
from trispark.site_files import site_files, write_site

REPOSITORY = Path(__file__).resolve().parents[3]
SITE_YML = "group_vars/all/site.yml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the project's data and no site."""
    for name in ("experiments", "templates", "adapters"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def fleet(root: Path) -> Path:
    """The inventory directory of a new site."""
    write_site(root, "fleet")
    return root / "inventory" / "fleet"


def change(path: Path, *replacements: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def ids(report: SiteReport) -> list[str]:
    return [problem.id for problem in report.problems]


def test_shipped_sites_have_no_problem() -> None:
    for name in ("lab", "sparks"):
        assert check_site(REPOSITORY, name).problems == ()


def test_the_files_of_a_site_s_signers_are_read(root: Path, fleet: Path, tmp_path: Path) -> None:
    change(fleet / SITE_YML, ("# site_image_signers: image_signers", "site_image_signers: image_signers"))
    change(fleet / SITE_YML, ("# site_image_revoked: image_revoked", "site_image_revoked: image_revoked"))
    signers, revoked = fleet / "image_signers", fleet / "image_revoked"
    report = check_site(root, "fleet")
    assert ids(report) == ["TS-PROVENANCE-SIGNERS"] * 2
    assert [problem.where for problem in report.problems] == [
        "inventory/fleet/image_signers",
        "inventory/fleet/image_revoked",
    ]
    allow(signers, ("builder@example", make_key(tmp_path, "builder"), ""))
    revoked.write_text("", encoding="utf-8")
    assert ids(check_site(root, "fleet")) == []
    signers.write_text("garbage\n", encoding="utf-8")
    assert [problem.where for problem in check_site(root, "fleet").problems] == [
        "inventory/fleet/image_signers line 1",
        "inventory/fleet/image_signers",
    ]


def test_shipped_sparks_is_the_template() -> None:
    inventory = REPOSITORY / "inventory" / "sparks"
    tracked = {path: (inventory / path).read_text(encoding="utf-8") for path in site_files(REPOSITORY, "sparks")}
    assert tracked == site_files(REPOSITORY, "sparks"), "write templates/site/ anew from it, or the other way round"


def test_a_new_site_is_read_resolved_and_not_configured(root: Path, fleet: Path, catalog: Catalog) -> None:
    site = load_site(fleet)
    assert (site.name, site.configured, site.engine, site.memory_model) == ("fleet", False, "sglang", "gb10")
    assert resolve(site, catalog, None, None, root).nodes == {0: "spark-a", 1: "spark-b", 2: "spark-c"}
    report = check_site(root, "fleet")
    assert (report.problems, report.configured) == ((), False)
    assert "verbs refuse it" in report.headline()


def test_files_can_be_read_by_others_and_nothing_is_left_beside_them(root: Path) -> None:
    before = os.umask(0o077)
    try:
        written = write_site(root, "fleet")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o644}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in written} == {0o755}
    assert [path.name for path in (root / "inventory").iterdir()] == ["fleet"]


@pytest.mark.parametrize("there", ["directory", "file", "link to nothing"])
def test_nothing_is_overwritten(root: Path, there: str) -> None:
    target = root / "inventory" / "fleet"
    target.parent.mkdir()
    {
        "directory": lambda: target.mkdir(),
        "file": lambda: target.write_text("mine"),
        "link to nothing": lambda: target.symlink_to("/nowhere"),
    }[there]()
    with pytest.raises(TrisparkError) as caught:
        write_site(root, "fleet")
    assert caught.value.id == "TS-SITE-EXISTS"
    assert [path.name for path in target.parent.iterdir()] == ["fleet"]


@pytest.mark.parametrize("name", ["", "Fleet", "../x", "a/b", "-x", "1x", "a b", "ü", "x" * 41, "."])
def test_a_name_that_is_no_directory_of_ours_is_refused(root: Path, name: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        write_site(root, name)
    assert caught.value.id == "TS-SITE-NAME"
    assert not (root / "inventory").exists()


def test_an_interrupted_write_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        write_site(root, "fleet")
    assert list((root / "inventory").iterdir()) == []


def test_every_problem_of_all_files_is_named(root: Path, fleet: Path) -> None:
    change(
        fleet / SITE_YML,
        ("site_name: fleet", "site_name: other\nNCCL_PROTO: LL"),
        ("site_configured: false", "site_configured: true"),
        ("site_api_port: 8888", "site_api_port: 20001"),
        ("site_stop_deadline_s: 420", "site_stop_deadline_s: 4200"),
        ("site_stats_seconds: 60", "site_stats_seconds: 0.01"),
        ("site_extra_container_env: {}", "site_extra_container_env: {NO_SUCH: 1, SGLANG_RECORD_STEP_TIME: 'yes'}"),
        ("site_build_dockerfile: null", "site_build_dockerfile: engine/Dockerfile"),
        ("workloads: [prose, code, structured, chat]", "workloads: [prose, verse]"),
        ("site_world_size: 3", "site_wrld_size: 3"),
    )
    change(fleet / "hosts.yml", ("node_gid_index: 3\n      node_pair_links:\n        - {peer: 0, local: 198.51.100.9",
                                 "node_pair_links:\n        - {peer: 0, local: 198.51.100.9"))  # fmt: skip
    report = check_site(root, "fleet")
    text = "\n".join(map(str, report.problems))
    for named in (
        "site_name is not the name of its directory",
        "unknown key site_wrld_size",
        "the key site_world_size is missing",
        "site_stop_deadline_s is wrong",
        "NCCL_PROTO is a key of the catalog",
        "TS-ENV-RANGE: DSV41_STATS_SECONDS",
        "NO_SUCH is not in the allowlist",
        "SGLANG_RECORD_STEP_TIME has a wrong value",
        "TS-SITE-DOCKERFILE: the Dockerfile that the site names is not there; where: inventory/fleet; "
        "expected: Dockerfiles/engine/Dockerfile",
        "TS-WORKLOAD-",
        "needs NCCL_IB_GID_INDEX on every rank; where: inventory/fleet/hosts.yml spark-c",
        "TS-SITE-EXAMPLE",
    ):
        assert named in text, named
    assert str(root) not in text, "paths are relative to the project"
    assert len(ids(report)) == len(set(map(str, report.problems)))
    # The ports are judged with the world size, which is missing; with it the collision is said, too.
    change(fleet / SITE_YML, ("site_wrld_size: 3", "site_world_size: 3"))
    assert "API port 20001" in "\n".join(map(str, check_site(root, "fleet").problems))


def test_every_broken_rule_is_named(root: Path, fleet: Path) -> None:
    change(fleet / SITE_YML, ("site_engram_mount: /engram", "site_engram_mount: /models"), ("8888", "20000"))
    change(
        fleet / "hosts.yml",
        ("node_address: 192.0.2.12", "node_address: 192.0.2.11"),
        ("remote: 198.51.100.2, interface: enp1s0f0np0", "remote: 198.51.100.3, interface: enP7s7"),
        ("198.51.100.9, interface: enp1s0f1np1, hca: rocep1s0f1", "198.51.100.9, interface: enp1s0f1np1, hca: mlx5_0"),
    )
    text = "\n".join(str(problem) for problem in check_site(root, "fleet").problems)
    for named in ("must lie apart", "API port 20000", "same node_address", "is not mirrored", "mlx5_0", "enP7s7"):
        assert named in text, named


@pytest.mark.parametrize(
    ("text", "error_id"),
    [("sparks: [\n", "TS-YAML-SYNTAX"), ("sparks: {hosts: {a: 1}}\n", "TS-SITE-SCHEMA"), ("", "TS-SITE-SCHEMA")],
)
def test_unreadable_hosts_do_not_hide_the_rest(root: Path, fleet: Path, text: str, error_id: str) -> None:
    (fleet / "hosts.yml").write_text(text, encoding="utf-8")
    change(fleet / SITE_YML, ("site_name: fleet", "site_name: '{{ x }}'"))
    report = check_site(root, "fleet")
    assert {"TS-SITE-TEMPLATE", error_id} <= set(ids(report))


def test_a_site_without_files(root: Path) -> None:
    (root / "inventory" / "empty").mkdir(parents=True)
    assert ids(check_site(root, "empty")) == ["TS-SITE-MISSING"]


def test_a_configured_site_needs_an_image_and_addresses_of_its_own(root: Path, fleet: Path) -> None:
    change(fleet / SITE_YML, ("site_configured: false", "site_configured: true"), ("site_engine_image", "# was"))
    assert set(ids(check_site(root, "fleet"))) == {"TS-SITE-IMAGES", "TS-SITE-EXAMPLE"}
    for documented, own in (("192.0.2.", "10.1.0."), ("198.51.100.", "10.2.0.")):
        change(fleet / "hosts.yml", (documented, own))
    assert ids(check_site(root, "fleet")) == ["TS-SITE-IMAGES"]


@pytest.mark.parametrize(
    ("replacement", "named"),
    [
        (("site_privileged: true", "site_privileged: 'yes'"), "site_privileged"),
        (("site_memory_model: gb10", "site_memory_model: GB 10"), "site_memory_model"),
        (("site_boot_minutes: 30", "site_boot_minutes: 0"), "site_boot_minutes"),
        (("site_build_dockerfile: null", "site_build_dockerfile: ../Dockerfile"), "site_build_dockerfile"),
        (("site_build_dockerfile: null", "site_build_dockerfile: /Dockerfile"), "site_build_dockerfile"),
        (("site_extra_container_env: {}", "site_extra_container_env: {A: [1]}"), "site_extra_container_env"),
        (
            ("# site_unattended_window: {begin: '22:00'", "site_unattended_window: {begin: '24:00'"),
            "site_unattended_window.begin",
        ),
        (
            (
                "# site_unattended_window: {begin: '22:00', back_by: '07:00'",
                "site_unattended_window: {begin: '07:00', back_by: '07:00'",
            ),
            "begin and back_by are both 07:00, the window would be empty",
        ),
        (
            (
                "# site_unattended_window: {begin: '22:00', back_by: '07:00', time_zone: UTC}",
                "site_unattended_window: {begin: '22:00', back_by: '07:00', time_zone: Europe/Berln}",
            ),
            "TS-TIME-ZONE",
        ),
        (("site_engine: sglang", "site_engine: vllm"), "vllm"),
        (("site_memory_model: gb10", "site_memory_model: gb11"), "TS-BUDGET-MODEL"),
    ],
)
def test_wrong_values_of_a_site_are_named(root: Path, fleet: Path, replacement: tuple[str, str], named: str) -> None:
    change(fleet / SITE_YML, replacement)
    assert named in "\n".join(map(str, check_site(root, "fleet").problems))


@pytest.mark.parametrize(
    ("replacement", "named"),
    [
        (("node_management_interface: enP7s7", "node_management_interface: a name"), "node_management_interface"),
        (("[rocep1s0f0, rocep1s0f1]", "[rocep1s0f0, rocep1s0f0]"), "node_hcas"),
        (("[rocep1s0f0, rocep1s0f1]", "rocep1s0f0"), "node_hcas"),
        (("node_gid_index: 3", "node_gid_index: 256"), "node_gid_index"),
        (("node_gid_index: 3", "node_mem_fraction: 95"), "node_mem_fraction"),
        (("node_gid_index: 3", "node_checkpoint_dir: /etc"), "node_checkpoint_dir"),
        (("node_gid_index: 3", "node_engram_dir: srv/x"), "node_engram_dir"),
        (("node_gid_index: 3", "node_engram_dir: /srv/models/DeepSeek-V4.1-Flash"), "spark-a must differ"),
        (("node_gid_index: 3", "node_colour: red"), "node_colour"),
        (("ansible_host: 192.0.2.11", "ansible_hsot: 192.0.2.11"), "ansible_hsot is no variable of Ansible"),
        (
            ("local: 198.51.100.5, remote: 198.51.100.6", "local: 198.51.100.1, remote: 198.51.100.6"),
            "spark-a and spark-b have the same address 198.51.100.1",
        ),
        (
            ("local: 198.51.100.1, remote: 198.51.100.2", "local: 198.51.100.1, remote: 198.51.100.1"),
            "the pair link of spark-a to rank 1 has one address for both ends, 198.51.100.1",
        ),
    ],
)
def test_wrong_values_of_a_node_are_named(root: Path, fleet: Path, replacement: tuple[str, str], named: str) -> None:
    change(fleet / "hosts.yml", replacement)
    assert named in "\n".join(map(str, check_site(root, "fleet").problems))


SITE_DIGEST = "3dbc313030a6ef2c5d7de8ecf48e9aece722694a82182cb618cc82b588816349"
OTHER_DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("images", "named"),
    [
        ({"canary": f"example/x@sha256:{OTHER_DIGEST}"}, []),
        ({"canary": f"example/x@sha256:{SITE_DIGEST}"}, ["the images site and canary are one"]),
        (
            {"b": f"example/x@sha256:{OTHER_DIGEST}", "a": f"elsewhere/y@sha256:{OTHER_DIGEST}"},
            ["the images a and b are one"],
        ),
    ],
    ids=["other", "the site's own", "twice"],
)
def test_two_names_for_one_image_are_found(root: Path, fleet: Path, images: dict[str, str], named: list[str]) -> None:
    change(fleet / SITE_YML, ("site_engine_images: {}", f"site_engine_images: {images}"))
    report = check_site(root, "fleet")
    assert [problem.what for problem in report.problems] == named
    assert set(ids(report)) <= {"TS-PLAN-IMAGE-SAME"}


@pytest.mark.parametrize("key", ["ansible_host", "ansible_become_user", "rack", "my_host", "ansible_facts_modules"])
def test_a_variable_of_ansible_or_of_ones_own_is_let_through(root: Path, fleet: Path, key: str) -> None:
    change(fleet / "group_vars/sparks/ansible.yml", ("ansible_user:", f"{key}: x\nansible_user:"))
    assert check_site(root, "fleet").problems == ()


def test_where_ansible_reaches_a_configured_node_is_no_example(root: Path, fleet: Path) -> None:
    change(fleet / SITE_YML, ("site_configured: false", "site_configured: true"))
    change(fleet / "hosts.yml", ("198.51.100.", "10.2.0."), ("node_address: 192.0.2.", "node_address: 10.1.0."))
    change(fleet / "hosts.yml", ("ansible_host: 192.0.2.10", "ansible_host: spark-a.example"))
    found = [(problem.id, problem.expected, problem.observed) for problem in check_site(root, "fleet").problems]
    expected = "your own address in ansible_host"
    assert found == [("TS-SITE-EXAMPLE", expected, "192.0.2.11"), ("TS-SITE-EXAMPLE", expected, "192.0.2.12")]


def test_a_rank_given_twice_is_one_line(root: Path, fleet: Path) -> None:
    change(fleet / "hosts.yml", ("node_rank: 2", "node_rank: 1"))
    (problem,) = check_site(root, "fleet").problems
    assert "the hosts need ranks 0 to 2 once each, not [0, 1, 1]" in str(problem)


@pytest.mark.parametrize(
    ("file", "replacement", "headline"),
    [
        ("hosts.yml", ("[rocep1s0f0, rocep1s0f1]", "rocep1s0f0"), "site: fleet: "),
        ("hosts.yml", ("sparks:", "sparks: ["), "site: fleet: "),
        (
            SITE_YML,
            ("site_engine: sglang", "site_engine: ["),
            "site: fleet (whether it is configured cannot be read): ",
        ),
    ],
    ids=["wrong value", "broken hosts", "broken site file"],
)
def test_a_mistake_does_not_make_a_site_unconfigured(
    root: Path, fleet: Path, file: str, replacement: tuple[str, str], headline: str
) -> None:
    change(fleet / SITE_YML, ("site_configured: false", "site_configured: true"))
    change(fleet / file, replacement)
    report = check_site(root, "fleet")
    assert report.headline().startswith(headline)
    assert report.problems


def test_the_missing_image_of_a_fleet_is_looked_for_in_its_own_file(root: Path, fleet: Path) -> None:
    change(fleet / SITE_YML, ("site_configured: false", "site_configured: true"), ("site_engine_image:", "# was"))
    change(fleet / "hosts.yml", ("192.0.2.", "10.1.0."), ("198.51.100.", "10.2.0."))
    (problem,) = check_site(root, "fleet").problems
    assert (problem.id, problem.where) == ("TS-SITE-IMAGES", "inventory/fleet/group_vars/all/site.yml")


def test_links_are_described_for_all_nodes_or_none(root: Path, fleet: Path) -> None:
    hosts = yaml.safe_load((fleet / "hosts.yml").read_text(encoding="utf-8"))
    for node in hosts["sparks"]["hosts"].values():
        del node["node_pair_links"]
    (fleet / "hosts.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    assert check_site(root, "fleet").problems == ()


def test_the_lab_s_engine_needs_them(make_site, catalog: Catalog, project: Path) -> None:
    site = load_site(make_site())
    bare = site.model_copy(update={"nodes": tuple(node.model_copy(update={"pair_links": ()}) for node in site.nodes)})
    with pytest.raises(TrisparkError) as caught:
        resolve(bare, catalog, None, None, project)
    assert (caught.value.id, caught.value.expected) == ("TS-SITE-NODE", "node_pair_links")


HEAD_IS_THE_CONTROLLER = (
    "    spark-a:\n      ansible_host: 192.0.2.10\n",
    "    spark-a:\n      ansible_connection: local\n",
)


def test_the_head_may_be_the_controller(root: Path, fleet: Path) -> None:
    """Ansible itself reaches it without ssh, and the checked site is the same as with it."""
    change(fleet / "hosts.yml", HEAD_IS_THE_CONTROLLER)
    assert check_site(root, "fleet").problems == ()
    site = load_site(fleet)
    assert site.head.address == "192.0.2.10"
    argv = [sys.executable, "-m", "ansible", "adhoc", "-i", str(fleet), "spark-a", "-m", "ansible.builtin.ping", "-o"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(root)}
    done = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"ping": "pong"' in done.stdout


def test_one_machine_is_one_rank_also_when_it_is_this_one(root: Path, fleet: Path) -> None:
    change(fleet / "hosts.yml", HEAD_IS_THE_CONTROLLER, ("ansible_host: 192.0.2.11", "ansible_connection: local"))
    (problem,) = check_site(root, "fleet").problems
    assert "spark-a and spark-b are both this machine" in str(problem)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
STAND_INS = yaml.safe_load(site_files(REPOSITORY, "template")[SITE_YML])
HOSTS = site_files(REPOSITORY, "template")["hosts.yml"]


@given(st.dictionaries(st.sampled_from(sorted(STAND_INS)) | st.text(max_size=12), values, max_size=4))
def test_any_values_give_problems_and_no_traceback(tmp_path_factory: pytest.TempPathFactory, given_values) -> None:
    directory = tmp_path_factory.mktemp("site")
    (directory / "group_vars" / "all").mkdir(parents=True)
    (directory / "hosts.yml").write_text(HOSTS, encoding="utf-8")
    text = yaml.safe_dump({**STAND_INS, **given_values}, allow_unicode=True)
    (directory / SITE_YML).write_text(text, encoding="utf-8")
    judged = judge_site(directory, STAND_INS)
    try:
        site: Site | None = load_site(directory, images="optional")
    except TrisparkError:
        site = None
    assert (site is None) is bool(judged.problems), "both find the same sites right"

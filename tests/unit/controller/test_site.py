"""The site is read from plain YAML; what is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.site import BENCH_HOURS_AT_MOST, load_site
from trispark_node.fields import Fields
from trispark_node.oneshot import OneshotRequest

REPOSITORY = Path(__file__).resolve().parents[3]


def refused(path: Path) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        load_site(path)
    return caught.value


def test_lab_site_is_read(make_site: Callable[..., Path]) -> None:
    site = load_site(make_site())
    assert [node.name for node in site.nodes] == ["spark0", "spark1", "spark2"]
    assert site.head.address == "10.77.0.10"
    assert [link.peer for link in site.nodes[1].pair_links] == [0, 2]
    assert site.rendezvous_ports == (20000, 20001, 20002, 20003)
    assert site.bench.workloads == ("prose", "code")
    assert set(site.other_keys) == {"ansible_user", "ansible_become_pass", "ansible_host"}


def test_a_measurement_that_the_site_allows_fits_in_what_the_node_agent_waits(make_site: Callable[..., Path]) -> None:
    """The largest that is allowed, and what the role adds to it."""
    site = load_site(make_site(site=[("repetitions: 5, max_tokens: 64", "repetitions: 44, max_tokens: 395")]))
    assert 0.98 * BENCH_HOURS_AT_MOST * 3600 < site.bench.deadline_s <= BENCH_HOURS_AT_MOST * 3600
    request = {"image": f"x@sha256:{'0' * 64}", "command": [], "deadline_s": site.bench.deadline_s + 30}
    assert OneshotRequest.parse(Fields(request, "request")).deadline_s > site.bench.deadline_s


def test_shipped_lab_inventory_is_valid() -> None:
    site = load_site(REPOSITORY / "inventory" / "lab", images="optional")
    assert (site.name, site.engine, site.world_size) == ("lab", "lab", 3)


@pytest.mark.parametrize(
    ("change", "error_id", "named"),
    [
        ({"extra": "site_nonsense: 1\n"}, "TS-SITE-SCHEMA", "site_nonsense"),
        ({"extra": "site_name: other\n"}, "TS-YAML-SYNTAX", "site_name"),
        ({"site": [("site_api_port: 8888\n", "")]}, "TS-SITE-SCHEMA", "site_api_port"),
        ({"site": [("site_api_port: 8888", "site_api_port: '8888'")]}, "TS-SITE-SCHEMA", "site_api_port"),
        ({"site": [("site_api_port: 8888", "site_api_port: 20001")]}, "TS-SITE-SCHEMA", "API port"),
        ({"site": [("/srv/engram", "srv/engram")]}, "TS-SITE-SCHEMA", "site_engram_dir"),
        ({"site": [("/srv/engram", "/srv/../engram")]}, "TS-SITE-SCHEMA", "site_engram_dir"),
        ({"site": [("site_name: lab", "site_name: '{{ x }}'")]}, "TS-SITE-TEMPLATE", "site_name"),
        ({"site": [("repetitions: 5", "repetitions: 5, colour: red")]}, "TS-SITE-SCHEMA", "site_bench.colour"),
        ({"site": [("max_tokens: 64", "max_tokens: 32768")]}, "TS-SITE-SCHEMA", "hours at 5 tokens a second"),
        ({"site": [("warmup_tokens: 16", "warmup_tokens: 32768")]}, "TS-SITE-SCHEMA", "hours at 5 tokens a second"),
        ({"site": [("site_stats_seconds: 1", "site_stats_seconds: .nan")]}, "TS-SITE-SCHEMA", "site_stats_seconds"),
        ({"site": [("site_root: /var/lib/trispark", "site_root: !vault x")]}, "TS-SITE-SCHEMA", "site_root"),
        ({"site": [("site_root: /var/lib/trispark", "site_root: 2026-01-01")]}, "TS-SITE-SCHEMA", "site_root"),
        ({"images": None}, "TS-SITE-IMAGES", "./trispark lab up"),
        ({"images": "site_engine_image: engine:latest\nsite_bench_image: x\n"}, "TS-SITE-SCHEMA", "site_engine_image"),
        ({"images": f"site_engine_image: r.example/e:1@sha256:{'a' * 64}\n"}, "TS-SITE-SCHEMA", "without a tag"),
        ({"hosts": [("node_rank: 2", "node_rank: 1")]}, "TS-SITE-SCHEMA", "ranks 0 to 2"),
        ({"hosts": [("node_rank: 2", "node_rnk: 2")]}, "TS-SITE-SCHEMA", "node_rnk"),
        ({"hosts": [("remote: 10.77.3.11", "remote: 10.77.3.99")]}, "TS-SITE-SCHEMA", "not mirrored"),
        ({"hosts": [("node_address: 10.77.0.12", "node_address: 10.77.0.11")]}, "TS-SITE-SCHEMA", "same node_address"),
        ({"hosts": [("node_address: 10.77.0.12", "node_address: spark2")]}, "TS-SITE-SCHEMA", "node_address"),
        ({"hosts": [("sparks:\n", "sparks:\n  vars: {site_name: x}\n")]}, "TS-SITE-PLACE", "site_name"),
        ({"hosts": [("ansible_host: 127.77.0.12", "site_name: x")]}, "TS-SITE-PLACE", "site_name"),
        ({"hosts": [("sparks:", "others:")]}, "TS-SITE-SCHEMA", "ranks 0 to 2"),
        ({"extra": "node_rank: 1\n"}, "TS-SITE-PLACE", "node_rank"),
        ({"extra": "a: [\n"}, "TS-YAML-SYNTAX", "site.yml"),
        ({"extra": "a: &a [*a]\n"}, "TS-YAML-ALIAS", "site.yml"),
        ({"hosts": [("sparks:\n", "sparks: &s\n  children: {x: *s}\n")]}, "TS-YAML-ALIAS", "hosts.yml"),
    ],
)
def test_refused_by_name(make_site: Callable[..., Path], change: dict[str, object], error_id: str, named: str) -> None:
    error = refused(make_site(**change))
    assert error.id == error_id
    assert named in str(error)
    assert "{'site_" not in str(error), "a rule, not a dump of all keys"
    assert len(str(error)) < 600


WRONG_SHAPES = {
    "group is a list": "sparks: [spark0]\n",
    "group is a text": "sparks: spark0\n",
    "group is a number": "sparks: 1\n",
    "group is tagged": "sparks: !vault x\n",
    "group has a number as key": "sparks: {1: x}\n",
    "hosts is a list": "sparks:\n  hosts: [spark0, spark1]\n",
    "hosts is a text": "sparks:\n  hosts: spark0\n",
    "hosts is false": "sparks:\n  hosts: false\n",
    "hosts is empty text": "sparks:\n  hosts: ''\n",
    "host name is a number": "sparks:\n  hosts: {1: {}}\n",
    "host name is true": "sparks:\n  hosts: {yes: {}}\n",
    "host is a list": "sparks:\n  hosts: {spark0: [node_rank]}\n",
    "host is a text": "sparks:\n  hosts: {spark0: node_rank}\n",
    "host is zero": "sparks:\n  hosts: {spark0: 0}\n",
    "variable is a number": "sparks:\n  hosts: {spark0: {1: 2}}\n",
    "vars is a list": "sparks:\n  vars: [ansible_user]\n",
    "vars is a text": "sparks:\n  vars: ansible_user\n",
    "vars has a number as key": "sparks:\n  vars: {1: 2}\n",
    "children is a list": "sparks:\n  children: [x]\n",
    "children is a text": "sparks:\n  children: x\n",
    "child is a list": "sparks:\n  children: {x: []}\n",
    "child has a number as key": "sparks:\n  children: {1: {}}\n",
    "links is a mapping": "sparks:\n  hosts: {spark0: {node_rank: 0, node_address: 10.0.0.1, node_pair_links: {}}}\n",
    "link is a text": "sparks:\n  hosts: {spark0: {node_rank: 0, node_address: 10.0.0.1, node_pair_links: [x]}}\n",
    "rank is a list": "sparks:\n  hosts: {spark0: {node_rank: [0], node_address: 10.0.0.1, node_pair_links: []}}\n",
    "address is a mapping": "sparks:\n  hosts: {spark0: {node_rank: 0, node_address: {}, node_pair_links: []}}\n",
    "nothing": "",
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_a_wrong_shape_in_hosts_is_refused(make_site: Callable[..., Path], name: str) -> None:
    directory = make_site()
    (directory / "hosts.yml").write_text(WRONG_SHAPES[name], encoding="utf-8")
    error = refused(directory)
    assert error.id == "TS-SITE-SCHEMA"
    assert str(directory) in error.where
    assert error.expected


SYSTEM = [
    "/",
    "/usr",
    "/etc",
    "/var",
    "/opt",
    "/proc",
    "/sys",
    "/dev",
    "/home",
    "/root",
    "/tmp",
    "/run",
    "/bin",
    "/lib",
]
INSIDE_THE_KERNEL = ["/proc/self", "/sys/fs", "/dev/shm"]
CHECKPOINT_MOUNT = "site_checkpoint_mount: /models/DeepSeek-V4.1-Flash"
ENGRAM_MOUNT = "site_engram_mount: /engram"
MODEL = "site_served_model_name: deepseek-v4.1-flash"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *[
            ({"site": [(f"{key}: {value}\n", f"{key}: {path}\n")]}, key)
            for path in [*SYSTEM, *INSIDE_THE_KERNEL]
            for key, value in (
                ("site_checkpoint_mount", "/models/DeepSeek-V4.1-Flash"),
                ("site_engram_mount", "/engram"),
                ("site_root", "/var/lib/trispark"),
                ("site_engram_dir", "/srv/engram"),
                ("site_checkpoint_dir", "/srv/models/DeepSeek-V4.1-Flash"),
            )
        ],
        ({"site": [(CHECKPOINT_MOUNT, "site_checkpoint_mount: /engram")]}, "must lie apart"),
        ({"site": [(CHECKPOINT_MOUNT, "site_checkpoint_mount: /engram/model")]}, "must lie apart"),
        ({"site": [(ENGRAM_MOUNT, "site_engram_mount: /models")]}, "must lie apart"),
        ({"site": [(ENGRAM_MOUNT, "site_engram_mount: /opt/trispark/adapters")]}, "must lie apart"),
        ({"site": [("dir: /srv/engram", "dir: /srv/models/DeepSeek-V4.1-Flash")]}, "site_engram_dir must differ"),
        ({"site": [("site_start_deadline_s: 60", "site_start_deadline_s: 86401")]}, "site_start_deadline_s"),
        ({"site": [("site_start_deadline_s: 60", "site_start_deadline_s: 0")]}, "site_start_deadline_s"),
        ({"site": [("site_start_deadline_s: 60", f"site_start_deadline_s: {10**400}")]}, "site_start_deadline_s"),
        ({"site": [("site_start_deadline_s: 60", "site_start_deadline_s: .inf")]}, "site_start_deadline_s"),
        ({"site": [("site_stop_deadline_s: 15", "site_stop_deadline_s: 3601")]}, "site_stop_deadline_s"),
        ({"site": [("site_watch_interval_s: 0.5", "site_watch_interval_s: 300.5")]}, "site_watch_interval_s"),
        ({"site": [("[1, 4]", "[1, 4, 1]")]}, "1 is there twice"),
        ({"site": [("[prose, code]", "[prose, prose]")]}, "prose is there twice"),
        ({"site": [("20003]", "20002]")]}, "20000, 20001, 20002, 20002"),
        *[
            ({"hosts": [(f"{end}: 10.77.1.10", f"{end}: {address}") for end in ("local", "remote")]},
             f"{address} is the node_address of {node}")
            for address, node in (("10.77.0.10", "spark0"), ("10.77.0.12", "spark2"))
        ],
        ({"hosts": [("ansible_host: 127.77.0.12", "ansible_host: 127.77.0.11")]}, "same ansible_host"),
        ({"hosts": [("ansible_host: 127.77.0.12", "ansible_host: A.example"),
                    ("ansible_host: 127.77.0.11", "ansible_host: a.EXAMPLE")]}, "same ansible_host"),
        *[
            ({"site": [(MODEL, f"site_served_model_name: {name}")]}, "site_served_model_name")
            for name in ("''", "-flash", "/flash", "'a b'", "'a;b'", '"a\\n"', "'{a}'", "ü", "a" * 201, "7")
        ],
    ],
)  # fmt: skip
def test_a_site_that_cannot_work_is_refused(
    make_site: Callable[..., Path], change: dict[str, object], named: str
) -> None:
    error = refused(make_site(**change))
    assert error.id == "TS-SITE-SCHEMA"
    assert named in str(error)
    assert "{'site_" not in str(error), "a rule, not a dump of all keys"
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"site": [("site_start_deadline_s: 60", "site_start_deadline_s: 86400")]},
        {"site": [("site_stop_deadline_s: 15", "site_stop_deadline_s: 3600")]},
        {"site": [("site_watch_interval_s: 0.5", "site_watch_interval_s: 300")]},
        {"site": [(MODEL, "site_served_model_name: DeepSeek/V4.1_Flash-x")]},
        {"site": [(ENGRAM_MOUNT, "site_engram_mount: /models/engram")]},
        {"site": [(ENGRAM_MOUNT, "site_engram_mount: /models/DeepSeek-V4.1-Flash-engram")]},
        {"site": [("site_root: /var/lib/trispark", "site_root: /opt/trispark")]},
        {"hosts": [(f"      ansible_host: 127.77.0.1{rank}\n", "") for rank in range(3)]},
    ],
)
def test_what_only_looks_wrong_is_read(make_site: Callable[..., Path], change: dict[str, object]) -> None:
    assert load_site(make_site(**change)).name == "lab"


def test_key_in_two_files_is_refused(make_site: Callable[..., Path]) -> None:
    directory = make_site()
    (directory / "group_vars" / "all" / "z.yml").write_text("site_name: lab\n", encoding="utf-8")
    assert refused(directory).id == "TS-SITE-TWICE"


def test_host_vars_that_the_resolver_would_not_see_are_refused(make_site: Callable[..., Path]) -> None:
    directory = make_site()
    (directory / "host_vars").mkdir()
    (directory / "host_vars" / "spark1.yml").write_text("node_address: 10.0.0.1\n", encoding="utf-8")
    error = refused(directory)
    assert (error.id, error.what.split()[0]) == ("TS-SITE-PLACE", "node_address")


def test_missing_directory(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").id == "TS-SITE-MISSING"


def test_images_may_be_optional(make_site: Callable[..., Path]) -> None:
    site = load_site(make_site(images=None), images="optional")
    with pytest.raises(TrisparkError) as caught:
        site.require_engine_image()
    assert caught.value.id == "TS-SITE-IMAGES"

"""The site is read from plain YAML; what is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.site import load_site

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
        ({"site": [("site_stats_seconds: 1", "site_stats_seconds: .nan")]}, "TS-SITE-SCHEMA", "site_stats_seconds"),
        ({"site": [("site_root: /var/lib/trispark", "site_root: !vault x")]}, "TS-SITE-SCHEMA", "site_root"),
        ({"site": [("site_root: /var/lib/trispark", "site_root: 2026-01-01")]}, "TS-SITE-SCHEMA", "site_root"),
        ({"images": None}, "TS-SITE-IMAGES", "./trispark lab up"),
        ({"images": "site_engine_image: engine:latest\nsite_bench_image: x\n"}, "TS-SITE-SCHEMA", "site_engine_image"),
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
    ],
)
def test_refused_by_name(make_site: Callable[..., Path], change: dict[str, object], error_id: str, named: str) -> None:
    error = refused(make_site(**change))
    assert error.id == error_id
    assert named in str(error)


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

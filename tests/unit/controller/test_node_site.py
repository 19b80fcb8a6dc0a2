"""What the nodes are told of their site is what the site's files say, and the agent takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trispark.catalog import Catalog
from trispark.node_site import node_requests, node_requests_if_readable
from trispark.resolve import resolve
from trispark.site import Site, load_site
from trispark_node.fields import Fields
from trispark_node.site_facts import SiteFacts

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["lab", "sparks"])
def test_the_agent_takes_what_the_site_gives(name: str) -> None:
    site = load_site(ROOT / "inventory" / name, images="optional")
    requests = node_requests(site)
    assert list(requests) == [node.name for node in site.nodes]
    for node, request in requests.items():
        fields = Fields(request, "request")
        facts = SiteFacts.parse(fields)
        fields.done()
        assert (facts.site, facts.node, facts.nodes) == (name, node, tuple(requests))
        assert facts.ports == tuple(sorted({site.api_port, *site.rendezvous_ports}))
        assert facts.stop_deadline_s == site.stop_deadline_s
        assert (facts.keep_generations, facts.keep_boots) == (site.keep_generations, site.keep_boots)
        assert facts.lock_lease_s == site.lock_lease_s


def test_the_thresholds_of_the_two_sites() -> None:
    found = {
        name: [
            request["memory"]
            for request in node_requests(load_site(ROOT / "inventory" / name, images="optional")).values()
        ]
        for name in ("lab", "sparks")
    }
    assert found["lab"] == 3 * [{"source": "cgroup", "available_bytes": 5 * 2**29}]
    assert found["sparks"] == 3 * [{"source": "meminfo", "available_bytes": 100 * 2**30}]


def test_a_site_without_a_threshold_judges_none(project: Path, make_site: Callable[..., Path]) -> None:
    assert node_requests(load_site(make_site(), images="optional"))["spark1"]["memory"] == {
        "source": "meminfo",
        "available_bytes": None,
    }


@pytest.mark.parametrize("content", [None, "{", "site_name: lab\n"])
def test_a_rollback_needs_no_readable_site(tmp_path: Path, content: str | None) -> None:
    directory = tmp_path / "inventory" / "lab" / "group_vars" / "all"
    directory.mkdir(parents=True)
    if content is not None:
        (directory / "site.yml").write_text(content, encoding="utf-8")
    assert node_requests_if_readable(tmp_path, "lab") == {}
    assert set(node_requests_if_readable(ROOT, "lab")) == {"spark0", "spark1", "spark2"}


def test_what_a_node_is_told_changes_no_generation(
    project: Path, site: Site, catalog: Catalog, make_site: Callable[..., Path]
) -> None:
    plain = resolve(site, catalog, None, None, project)
    told = load_site(make_site(site=[("site_watch_interval_s: 0.5", OTHER)]))
    assert node_requests(told)["spark0"]["keep_boots"] == 7
    other = resolve(told, catalog, None, None, project)
    assert (other.id, other.specs) == (plain.id, plain.specs)


OTHER = """site_watch_interval_s: 0.5
site_memory_source: cgroup
site_stopped_memory_gib: 3
site_keep_generations: 4
site_keep_boots: 7
site_lock_lease_s: 30"""

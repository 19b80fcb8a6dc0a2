"""What the nodes must be before anything is changed."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from trispark.errors import TrisparkError
from trispark.preflight import check_nodes

SITE = SimpleNamespace(
    name="sparks",
    nodes=[
        SimpleNamespace(
            name=f"spark{rank}", address=f"10.0.0.{rank}", pair_links=[SimpleNamespace(local=f"10.0.1.{rank}")]
        )
        for rank in range(3)
    ],
)
HOSTS = {
    f"spark{rank}": {
        "addresses": {"eth0": [f"10.0.0.{rank}"], "eth1": [f"10.0.1.{rank}"]},
        "disk": {"/srv/engram": {"free_bytes": 1000, "total_bytes": 2000}},
        "memory_available_bytes": 500,
    }
    for rank in range(3)
}
STATUSES = {f"spark{rank}": {"foreign": []} for rank in range(3)}


def test_nodes_of_the_lab_that_do_not_answer_are_made_by_lab_up() -> None:
    lab = SimpleNamespace(name="lab", nodes=SITE.nodes)
    for site, remedy in ((lab, "./trispark lab up, then"), (SITE, "bring the node back, then")):
        with pytest.raises(TrisparkError) as caught:
            check_nodes(site, {}, {}, 1000, 500)
        assert caught.value.remedy.startswith(remedy)


def test_a_sound_site_passes() -> None:
    check_nodes(SITE, HOSTS, STATUSES, 1000, 500)


def broken(change):
    hosts, statuses = copy.deepcopy(HOSTS), copy.deepcopy(STATUSES)
    change(hosts, statuses)
    return hosts, statuses


@pytest.mark.parametrize(
    ("change", "check_id", "where"),
    [
        (lambda h, s: h.pop("spark2"), "TS-PREFLIGHT-NODE", "spark2"),
        (lambda h, s: h["spark1"]["addresses"].pop("eth1"), "TS-PREFLIGHT-ADDRESS", "spark1"),
        (lambda h, s: h["spark0"]["disk"]["/srv/engram"].update(free_bytes=999), "TS-PREFLIGHT-DISK", "spark0"),
        (lambda h, s: h["spark2"].update(memory_available_bytes=499), "TS-PREFLIGHT-MEMORY", "spark2"),
        (lambda h, s: s["spark0"].update(problems=["journal: line 3 cannot be read"]), "TS-PREFLIGHT-STATE", "spark0"),
        (lambda h, s: s["spark1"]["foreign"].append("trispark-engine"), "TS-PREFLIGHT-FOREIGN", "spark1"),
    ],
)
def test_the_odd_node_is_named(change, check_id, where) -> None:
    hosts, statuses = broken(change)
    with pytest.raises(TrisparkError) as caught:
        check_nodes(SITE, hosts, statuses, 1000, 500)
    assert caught.value.id == check_id
    assert caught.value.where.startswith(where)

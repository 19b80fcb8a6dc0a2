"""What is done about an engine that someone started by hand, from what the nodes say of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.adopt import container_names, loggable_names, plan_adopt
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.site import load_site

REPO = Path(__file__).resolve().parents[3]
SITE = load_site(REPO / "inventory" / "lab", "optional")
ID = "a" + "1" * 16
NOW = datetime(2026, 1, 2, 5, 34, 59, tzinfo=UTC)


def found(name: str, rank: int | None, **more: object) -> dict[str, object]:
    return {
        "name": name, "container_id": f"{rank or 0}" * 64, "state": "running", "started_at": "2026-01-02T03:04:05.123Z",
        "image": {"ref": "dsv41:mine", "id": "sha256:" + "b" * 64, "digests": []}, "rank": rank,
        "rank_from": "NODE_RANK" if rank is not None else "", "command": ["python3", "boot.py"],
        "env": {"API_KEY": None, "NODE_RANK": str(rank)},
        "mounts": [{"type": "bind", "source": "/srv/engram", "target": "/engram", "read_only": True}],
        "options": {"RestartPolicy": {"Name": "always"}}, "labels": {}, "inexact": [], "fingerprint": "f" * 64, **more,
    }  # fmt: skip


def taken(name: str, rank: int, adoption: str = ID, phase: str = "taken", **more: object) -> dict[str, object]:
    return {
        "id": adoption, "phase": phase, "time": "2026-01-01T00:00:00.000Z", "name": name,
        "container_id": f"{rank}" * 64, "rank": rank, "container": "exited", **more,
    }  # fmt: skip


def surveys(*lists: tuple[list[dict], list[dict]]) -> dict[str, dict]:
    """{node: answer} of (containers, taken) in rank order."""
    return {
        f"spark{rank}": {"containers": containers, "others": ["dsv41-nfs"], "taken": kept}
        for rank, (containers, kept) in enumerate(lists)
    }


ALL = surveys(([found("dsv41-head", 0)], []), ([found("dsv41-worker", 1)], []), ([found("dsv41-worker", 2)], []))
NAMES = "dsv41-head,dsv41-worker"


def plan(answers=ALL, **more):
    return plan_adopt(SITE, answers, now=NOW, **{"container": NAMES, **more})


def refused(answers=ALL, **more) -> str:
    with pytest.raises(TrisparkError) as caught:
        plan(answers, **more)
    assert caught.value.remedy
    return caught.value.id


def test_looking_does_nothing_and_says_all() -> None:
    seen = plan(container="")
    assert (seen.mode, seen.id, seen.requests) == ("survey", "", {})
    text = "\n".join(seen.lines)
    for part in ("spark1: container dsv41-worker, rank 1 (NODE_RANK), running for 2 h 30 min", "API_KEY", "dsv41-nfs"):
        assert part in text
    assert "restart policy always" in text


def test_without_a_word_of_consent_nothing_is_taken() -> None:
    seen = plan()
    assert (seen.mode, seen.requests) == ("survey", {})
    assert plan(confirm=True).id in seen.lines[-1]


def test_a_take_over_asks_every_node_for_its_own_container() -> None:
    chosen = plan(confirm=True, loggable=["NODE_RANK"])
    assert chosen.mode == "take"
    assert chosen.requests["spark2"] == {
        "id": chosen.id, "container_id": "2" * 64, "rank": 2, "deadline_s": SITE.stop_deadline_s, "remove": False,
        "loggable": ["NODE_RANK"],
    }  # fmt: skip
    assert plan(confirm=True).id == chosen.id
    later = surveys(([found("dsv41-head", 0, started_at="2026-01-03T00:00:00Z")], []), ([], []), ([], []))
    assert plan(later, confirm=True).id != chosen.id


def test_a_node_without_the_container_has_no_part() -> None:
    some = surveys(([], []), ([found("dsv41-worker", 1)], []), ([], []))
    assert list(plan(some, confirm=True).requests) == ["spark1"]


def test_an_interrupted_take_over_is_gone_on_with() -> None:
    half = surveys(([], [taken("dsv41-head", 0)]), ([found("dsv41-worker", 1)], []), ([found("dsv41-worker", 2)], []))
    chosen = plan(half, confirm=True)
    assert {request["id"] for request in chosen.requests.values()} == {ID}
    assert list(chosen.requests) == ["spark0", "spark1", "spark2"]


def test_an_older_take_over_does_not_catch_a_new_container() -> None:
    old = [taken("dsv41-worker", 1, container_id="9" * 64), taken("dsv41-worker", 1, phase="returned")]
    seen = surveys(([], []), ([found("dsv41-worker", 1)], old), ([], []))
    assert plan(seen, confirm=True).id != ID


@pytest.mark.parametrize(
    ("answers", "more", "word"),
    [
        ({name: ALL[name] for name in ("spark0", "spark1")}, {}, "NODE"),
        (ALL, {"container": "dsv41-other"}, "NONE"),
        (ALL, {"container": "", "confirm": True}, "CONTAINER"),
        (ALL, {"container": "a b"}, "CONTAINER"),
        (ALL, {"back_to": ID}, "CONTAINER"),
        (ALL, {"container": "", "back_to": ID}, "UNKNOWN"),
        (ALL, {"container": "", "back_to": "latest"}, "UNKNOWN"),
        (surveys(([found("dsv41-head", 0), found("dsv41-worker", 1)], []), ([], []), ([], [])), {}, "AMBIGUOUS"),
        (surveys(([found("dsv41-head", 1)], []), ([], []), ([], [])), {}, "RANK"),
        (surveys(([found("dsv41-head", None)], []), ([], []), ([], [])), {}, "NOENGINE"),
        (
            surveys(([], [taken("dsv41-head", 0)]), ([], [taken("dsv41-worker", 1, "a" + "2" * 16)]), ([], [])),
            {},
            "MIXED",
        ),
    ],
)
def test_refusals(answers, more, word) -> None:
    assert refused(answers, **more) == f"TS-ADOPT-{word}"


def test_the_way_back_goes_to_every_node_that_holds_it() -> None:
    kept = surveys(([], [taken("dsv41-head", 0)]), ([], [taken("dsv41-worker", 1, container="removed")]), ([], []))
    chosen = plan(kept, container="", back_to=ID)
    assert (chosen.mode, chosen.requests) == ("back", {name: {"id": ID} for name in ("spark0", "spark1")})
    assert "made anew" in chosen.lines[1]
    assert "started again" in chosen.lines[0]


def test_what_makes_ranks_differ_is_said() -> None:
    other = {"ref": "dsv41:mine", "id": "sha256:" + "c" * 64, "digests": []}
    seen = surveys(([found("dsv41-head", 0)], []), ([found("dsv41-worker", 1, image=other)], []), ([], []))
    assert any("different images" in line for line in plan(seen).lines)
    notes = {"inexact": ["its second network"], "labels": {"com.docker.compose.project": "llm"}}
    notes["options"] = {"AutoRemove": True}
    text = "\n".join(plan(surveys(([found("dsv41-head", 0, **notes)], []), ([], []), ([], []))).lines)
    assert all(
        word in text for word in ("compose project llm", "remove=true", "its second network", "restart policy no")
    )


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=30))
def test_any_names_are_read_or_refused_by_id(text) -> None:
    refusal, names = "", ()
    try:
        names = container_names(text)
    except TrisparkError as error:
        refusal = error.id
    assert refusal in ("", "TS-ADOPT-CONTAINER")
    assert all(name and "," not in name for name in names)


def test_a_secret_variable_is_not_among_those_that_are_shown() -> None:
    catalog = load_catalog(REPO)
    names = loggable_names(catalog.allowlist)
    assert "NODE_RANK" in names
    assert not [
        variable.name for variable in catalog.allowlist.variables() if not variable.loggable and variable.name in names
    ]

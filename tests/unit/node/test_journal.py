"""Write-ahead journal: what was acknowledged is there, what was cut off is not, what is open is pending."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import journal as journal_module
from trispark_node.disk import Disk
from trispark_node.errors import AgentError
from trispark_node.journal import DONE, FAILED, INTENT, Journal, previous

details = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20) | st.none(), max_size=3)
entries = st.lists(st.tuples(st.sampled_from(["stop", "start", "stage"]), details), max_size=6)
relaxed = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fresh(tmp_path: Path, bench) -> Journal:
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    return Journal(path, bench.node.disk, bench.clock)


@relaxed
@given(written=entries, cut=st.integers(0, 10_000), more=entries)
def test_any_cut_keeps_whole_entries_and_takes_new_ones(tmp_path, bench, written, cut, more):
    journal = fresh(tmp_path, bench)
    for verb, detail in written:
        journal.append(verb, INTENT, detail)
    path = tmp_path / "journal.jsonl"
    content = path.read_bytes() if written else b""
    content = content[: cut % (len(content) + 1)]
    path.write_bytes(content)
    kept = content.count(b"\n")
    assert [entry.detail for entry in journal.read().entries] == [detail for _, detail in written[:kept]]
    for verb, detail in more:
        journal.append(verb, INTENT, detail)
    history = journal.read()
    assert history.damaged_lines == ()
    assert [(e.verb, dict(e.detail)) for e in history.entries] == [*written[:kept], *more]
    assert [entry.seq for entry in history.entries] == list(range(1, kept + len(more) + 1))


@relaxed
@given(junk=st.binary(max_size=40))
def test_a_damaged_line_is_reported_and_passed_over(tmp_path, bench, junk):
    journal = fresh(tmp_path, bench)
    journal.append("stop", INTENT, {})
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"\xff" + junk.replace(b"\n", b"") + b"\n")
    assert journal.append("start", INTENT, {}) == 2
    history = journal.read()
    assert history.damaged_lines == (2,)
    assert [entry.verb for entry in history.entries] == ["stop", "start"]


def test_pending(tmp_path, bench):
    journal = fresh(tmp_path, bench)

    def pending() -> list[int]:
        return [entry.seq for entry in journal.read().pending()]

    first = journal.append("activate", INTENT, {})
    other = journal.append("stage", INTENT, {})
    assert pending() == [first, other]
    failed = journal.append("activate", INTENT, {})
    journal.append("activate", FAILED, {"intent": failed})
    assert pending() == [first, other]  # a failure makes up for nothing
    done = journal.append("activate", INTENT, {})
    journal.append("activate", DONE, {"intent": done})
    assert pending() == [other]


@pytest.mark.parametrize(
    ("error", "name"),
    [(AgentError("TS-X", "", where="", expected="", observed="", remedy=""), "TS-X"), (KeyError("k"), "KeyError")],
)
def test_a_failing_step_is_written_down(tmp_path, bench, error, name):
    journal = fresh(tmp_path, bench)
    with pytest.raises(type(error)), journal.step("stop", {"a": 1}):
        raise error
    last = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["detail"]) == ("failed", {"intent": 1, "error": name})


def test_the_intent_is_on_the_disk_before_the_effect(bench, active):
    seen = []
    bench.docker.on_start = lambda _id: seen.append(bench.node.journal.read().entries[-1])
    bench.ask("start", boot_id="b1", epoch=5)
    assert [(entry.verb, entry.phase, entry.detail["boot_id"]) for entry in seen] == [("start", "intent", "b1")]
    assert bench.node.journal.read().pending() == []


@pytest.fixture
def short(monkeypatch):
    """A journal that is shortened after 40 lines to 10."""
    monkeypatch.setattr(journal_module, "MOST_LINES", 40)
    monkeypatch.setattr(journal_module, "KEPT_LINES", 10)


def steps(journal: Journal, count: int) -> None:
    for number in range(count):
        with journal.step("stop", {"number": number}):
            pass


def test_a_long_journal_is_shortened_and_loses_nothing_that_is_needed(tmp_path, bench, short):
    journal = fresh(tmp_path, bench)
    started = journal.append("start", INTENT, {"boot": "a"})
    journal.append("start", DONE, {"intent": started})
    pending = journal.append("stage", INTENT, {"generation": "g"})
    steps(journal, 100)
    history = journal.read()
    assert len(history.entries) < 40
    assert [entry.seq for entry in history.pending()] == [pending]
    assert max(entry.seq for entry in history.entries if entry.verb == "start") == started + 1
    assert history.entries[-1].seq == 203
    intents = {entry.seq for entry in history.entries if entry.phase == INTENT}
    answered = {entry.detail["intent"] for entry in history.entries[3:] if entry.phase == DONE}
    assert answered <= intents
    before = Journal(previous(tmp_path / "journal.jsonl"), bench.node.disk, bench.clock).read()
    assert len(before.entries) == 40


def test_a_journal_below_the_bound_has_one_file(tmp_path, bench, short):
    journal = fresh(tmp_path, bench)
    steps(journal, 20)
    assert len(journal.read().entries) == 40
    assert not previous(tmp_path / "journal.jsonl").exists()


class Cut(Exception):
    pass


def test_a_crash_at_any_step_of_the_shortening_leaves_the_long_or_the_short_journal(tmp_path, bench, short):
    outcomes = set()
    for at in range(100):
        place = tmp_path / str(at)
        seen = []

        def before(step, path, at=at, seen=seen):
            if len(seen) == at:
                raise Cut
            seen.append(step)

        whole = Journal(place / "journal.jsonl", Disk(), bench.clock)
        pending = whole.append("stage", INTENT, {})
        steps(whole, 19)
        whole.append("start", INTENT, {})
        cut = Journal(place / "journal.jsonl", Disk(before), bench.clock)
        try:
            cut.append("stop", INTENT, {})
        except Cut:
            pass
        else:
            assert outcomes == {40, 12, 13}, "long; short; short with the line"
            return
        history = whole.read()
        assert not history.damaged_lines
        assert [entry.seq for entry in history.pending()][:2] == [pending, 40]
        outcomes.add(len(history.entries))
        whole.append("stop", INTENT, {})
        assert len(whole.read().entries) < 40
    pytest.fail("the steps do not end")


def test_a_full_disk_keeps_the_long_journal_and_takes_the_line(tmp_path, bench, short):
    def before(step, path):
        if step == "link":
            raise OSError(28, "No space left on device")

    journal = Journal(tmp_path / "journal.jsonl", Disk(before), bench.clock)
    steps(journal, 30)
    assert len(journal.read().entries) == 60

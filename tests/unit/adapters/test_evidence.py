"""The lines by which adapters say what they are and do."""

import sys
import threading
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_hooks import evidence
from trispark_hooks.evidence import Counters, Reporter, period_s, report


def test_a_state_is_one_line_with_facts_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    said: list[str] = []
    report("wo_a_w8", "armed", say=said.append, twins=40, left=0)
    report("prefetch", "disabled", 'row 3: "short" read\nof 264', say=said.append, layer=14)
    assert said == [
        "[trispark] adapter=wo_a_w8 rank=1 state=armed twins=40 left=0",
        "[trispark] adapter=prefetch rank=1 state=disabled layer=14 reason=\"row 3: 'short' read of 264\"",
    ]


def test_a_state_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="'on' is none of armed, active, disabled, refused"):
        report("x", "on", say=lambda line: None)


@given(st.text(max_size=40))
def test_every_reason_stays_one_word_of_one_line(reason: str) -> None:
    said: list[str] = []
    report("x", "refused", reason, say=said.append)
    (line,) = said
    assert not set(line) & {"\n", "\r"}
    word = line.partition("state=refused")[2]
    assert word == "" if not reason else word.startswith(" reason=")
    assert word.count('"') in (0, 2)


def test_the_rank_is_the_groups_else_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.delitem(sys.modules, "sglang.srt.distributed", raising=False)
    assert evidence.rank() == "-"
    monkeypatch.setenv("NODE_RANK", "2")
    assert evidence.rank() == "2"
    groups = ModuleType("sglang.srt.distributed")
    monkeypatch.setitem(sys.modules, groups.__name__, groups)
    assert evidence.rank() == "2"  # not made yet
    groups.get_tensor_model_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    assert evidence.rank() == "0"


def test_counters_say_what_is_new_and_nothing_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "0")
    count = Counters("wo_a_w8", "small", "mid")
    assert count.line() is None
    count.add("small", 3)
    count.add("mid")
    assert count.line() == "[trispark] adapter=wo_a_w8 rank=0 calls small=3 mid=1"
    assert count.line() is None
    count.add("mid")
    assert count.line() == "[trispark] adapter=wo_a_w8 rank=0 calls small=0 mid=1"
    assert count.read() == {"small": 3, "mid": 2}
    with pytest.raises(KeyError):
        count.add("large")


def test_counts_of_several_threads_add_up() -> None:
    count = Counters("x", "calls")
    threads = [threading.Thread(target=lambda: [count.add("calls") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.read() == {"calls": 2000}


def test_a_reporter_prints_the_counters_that_moved() -> None:
    said: list[str] = []
    reporter = Reporter(0, said.append)
    first, second = reporter.counters("first", "calls"), reporter.counters("second", "calls")
    reporter.flush()
    assert said == []
    second.add("calls")
    reporter.flush()
    assert [line.split()[1] for line in said] == ["adapter=second"]
    first.add("calls")
    reporter.flush()
    assert len(said) == 2


def test_a_reporter_prints_by_itself_until_it_is_closed() -> None:
    said: list[str] = []
    printed = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        printed.set()

    reporter = Reporter(0.01, say)
    reporter.counters("x", "calls").add("calls")
    assert printed.wait(30)
    reporter.close()
    assert said[0].endswith("calls calls=1")


def test_a_period_of_zero_starts_no_thread() -> None:
    before = threading.active_count()
    Reporter(0).counters("x", "calls")
    assert threading.active_count() == before


@pytest.mark.parametrize(("text", "seconds"), [(None, 0), ("", 0), ("60", 60), ("0.5", 0.5), ("-3", 0), ("often", 0)])
def test_the_period(text: str | None, seconds: float) -> None:
    assert period_s({} if text is None else {"DSV41_STATS_SECONDS": text}) == seconds


def test_a_line_reaches_stdout_whole(capfd: pytest.CaptureFixture[str]) -> None:
    evidence.write("[trispark] a line")
    assert capfd.readouterr().out == "[trispark] a line\n"


def test_sources_speak_when_they_have_news_and_one_that_fails_leaves_the_others() -> None:
    said: list[str] = []
    reporter = Reporter(0, said.append)
    lines = iter(["a", None, "b"])

    def broken() -> str:
        raise OSError("closed")

    reporter.follow(broken)
    reporter.follow(lambda: next(lines))
    for _ in range(3):
        reporter.flush()
    assert said[1:] == ["a", "b"]
    assert "closed" in said[0]
    assert "failed" in said[0]

import io
import re
import threading

from trispark_lab import stats
from trispark_lab.logs import EngineLog


def test_lines_come_in_periods_and_once_at_the_end() -> None:
    lines: list[str] = []
    news = threading.Event()
    seen = threading.Event()

    def source(final: bool) -> list[str]:
        if final:
            return ["last"]
        if news.is_set():
            news.clear()
            return ["news"]
        return []

    def write(line: str) -> None:
        lines.append(line)
        seen.set()

    periodic = stats.PeriodicStats(0.001, write)
    periodic.add(source)
    periodic.start()
    news.set()
    assert seen.wait(10)
    periodic.close()
    periodic.close()
    assert lines == ["news", "last"]


def test_off_prints_nothing() -> None:
    lines: list[str] = []
    periodic = stats.PeriodicStats(0, lines.append)
    periodic.add(lambda final: ["x"])
    periodic.start()
    periodic.close()
    assert lines == []


def test_line_prefix() -> None:
    stream = io.StringIO()
    EngineLog(2, 3, stream).rank_line("a")
    EngineLog(2, 1, stream).rank_line("b")
    EngineLog(0, 3, stream).head_line("c")
    EngineLog(0, 3, stream).bare("d")
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    expected = rf"{stamp} TP2 EP2\] a\n{stamp} TP2\] b\n{stamp}\] c\nd\n"
    assert re.fullmatch(expected, stream.getvalue())

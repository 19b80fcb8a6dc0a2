"""What adapters say of themselves: one line for each state of an adapter on a rank, and counters that prove its use.

    [trispark] adapter=wo_a_w8 rank=1 state=armed twins=40 left=0
    [trispark] adapter=wo_a_w8 rank=1 calls small=120 mid=0 stock=3

`rank` is the tensor-parallel rank, "-" in a process that has none. A line of counters comes every
DSV41_STATS_SECONDS (0: never) while they move. Counters count calls of Python, so a call that is captured in a CUDA
graph counts once, at the capture, and not at each replay.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final

STATES: Final = ("armed", "active", "disabled", "refused")

Write = Callable[[str], None]


def write(line: str) -> None:
    """One line on stdout, whole although several processes share it."""
    os.write(1, f"{line}\n".encode())


def rank() -> str:
    """Tensor-parallel rank of this process, once the engine has made its groups; else that of its environment.

    Nothing is imported for it: a hook reports in the middle of an import.
    """
    try:
        return str(sys.modules["sglang.srt.distributed"].get_tensor_model_parallel_rank())
    except Exception:  # before the groups are made, or without the engine
        return os.environ.get("NODE_RANK", "-")


def report(adapter: str, state: str, reason: str = "", *, say: Write = write, **facts: object) -> None:
    """Say a state of `adapter`; `facts` follow as name=value, `reason` last, quoted."""
    if state not in STATES:
        raise ValueError(f"{state!r} is none of {', '.join(STATES)}")
    words = [f"adapter={adapter}", f"rank={rank()}", f"state={state}", *_facts(facts)]
    if reason:
        words.append(f"reason={_quoted(reason)}")
    say(f"[trispark] {' '.join(words)}")


class Counters:
    """Named counts of one adapter; safe from several threads."""

    def __init__(self, adapter: str, *names: str) -> None:
        self._adapter = adapter
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(names, 0)
        self._said = dict(self._counts)

    def add(self, name: str, count: int = 1) -> None:
        """Count `name`, which was given at the start."""
        with self._lock:
            self._counts[name] += count

    def read(self) -> dict[str, int]:
        """All counts since the start."""
        with self._lock:
            return dict(self._counts)

    def line(self) -> str | None:
        """What was counted since the last line; None without news."""
        with self._lock:
            news = {name: count - self._said[name] for name, count in self._counts.items()}
            self._said = dict(self._counts)
        if not any(news.values()):
            return None
        return f"[trispark] adapter={self._adapter} rank={rank()} calls {' '.join(_facts(news))}"


Source = Callable[[], str | None]
"""Gives the line that is due, None without news; called from the reporter's thread."""


class Reporter:
    """Prints the lines of its sources from one daemon thread of the process; it starts with the first source."""

    def __init__(self, period_s: float, say: Write = write) -> None:
        self._period_s = period_s
        self._say = say
        self._sources: list[Source] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def counters(self, adapter: str, *names: str) -> Counters:
        """New counters whose lines this reporter prints."""
        made = Counters(adapter, *names)
        self.follow(made.line)
        return made

    def follow(self, source: Source) -> None:
        """Print what `source` has to say from now on."""
        with self._lock:
            self._sources.append(source)
            first = len(self._sources) == 1
        if first and self._period_s > 0:
            threading.Thread(target=self._run, name="trispark-evidence", daemon=True).start()

    def flush(self) -> None:
        """Print what is due now. A source that fails is said and left out, so that the others go on."""
        with self._lock:
            known = list(self._sources)
        for source in known:
            try:
                line = source()
            except Exception as error:
                with self._lock:
                    self._sources.remove(source)
                line = f"[trispark] rank={rank()} a source of counters failed, it says no more: {_quoted(repr(error))}"
            if line:
                self._say(line)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.flush()


def period_s(environ: Mapping[str, str]) -> float:
    """DSV41_STATS_SECONDS, 0 when it is unset, empty or no number."""
    try:
        return max(0.0, float(environ.get("DSV41_STATS_SECONDS", "") or 0))
    except ValueError:
        return 0.0


REPORTER: Final = Reporter(period_s(os.environ))


def counters(adapter: str, *names: str) -> Counters:
    """Counters of this process."""
    return REPORTER.counters(adapter, *names)


def _facts(facts: Mapping[str, object]) -> list[str]:
    return [f"{name}={_quoted(str(value))}" for name, value in facts.items()]


def _quoted(text: str) -> str:
    """As it is where it is one plain word; else in double quotes on one line."""
    if text and not set(text) & set(' \t\r\n"='):
        return text
    return '"' + " ".join(text.split()).replace('"', "'") + '"'

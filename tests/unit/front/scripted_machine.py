"""A machine that exists only in the test: programs, files, a clock that moves when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trispark.host.machine import Outcome

Answer = Outcome | Callable[["ScriptedMachine"], Outcome]


class ScriptedMachine:
    """``answers`` maps the beginning of a command line to its outcome, or to a function that may change this machine.

    A command without an answer succeeds silently. ``commands`` lists what was run, in order.
    """

    def __init__(
        self,
        *,
        uid: int = 0,
        programs: set[str] | None = None,
        files: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        answers: Mapping[str, Answer] | None = None,
        free: int = 10**12,
        terminal: bool = False,
    ) -> None:
        self.uid = uid
        self.programs = set(programs or ())
        self.files = dict(files or {})
        self.environment = dict(environ or {})
        self.answers = dict(answers or {})
        self.free = free
        self.terminal = terminal
        self.commands: list[str] = []
        self.environments: list[Mapping[str, str] | None] = []
        self.clock = 0.0

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60, env: Mapping[str, str] | None = None, ask: bool = False
    ) -> Outcome:
        command = " ".join(argv)
        self.commands.append(command)
        self.environments.append(env)
        matching = [start for start in self.answers if command.startswith(start)]
        if not matching:
            return Outcome(0)
        answer = self.answers[max(matching, key=len)]
        return answer if isinstance(answer, Outcome) else answer(self)

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def read_text(self, path: Path) -> str:
        return self.files.get(str(path), "")

    def write_text(self, path: Path, text: str) -> None:
        self.files[str(path)] = text

    def exists(self, path: Path) -> bool:
        return str(path) in self.files

    def free_bytes(self, path: Path) -> int:
        return self.free

    def user(self) -> tuple[int, str]:
        return self.uid, "root" if self.uid == 0 else "dev"

    def environ(self, name: str) -> str:
        return self.environment.get(name, "")

    def interactive(self) -> bool:
        return self.terminal

    def now(self) -> float:
        return self.clock

    def pause(self, seconds: float) -> None:
        self.clock += seconds

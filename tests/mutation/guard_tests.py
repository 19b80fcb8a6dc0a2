"""Which tests can catch that a guard is gone: first those that name its id, then of its module, then of its part."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from guard_sites import Guard

LEFT_OUT = ("test_real_docker.py", "test_reference.py", "test_lint.py")
"""The machine's own Docker Engine is left alone; a page of ids that differs has judged nothing."""
DIRECTORIES = {
    "src/trispark_node": ("node",),
    "src/trispark/lab": ("labinfra",),
    "src/trispark/host": ("front",),
    "src/trispark/cli": ("front",),
    "src/trispark_bench": ("bench",),
    "plugins/action": ("front", "controller", "boot"),
    "lab/trispark_lab": ("lab_engine",),
    "adapters/engram_store": ("engram_store",),
    "adapters": ("adapters", "lab_engine"),
    "src/trispark": ("controller", "boot"),
}
"""Directories below tests/unit by the longest beginning of a source's path."""


class TestFiles:
    __test__ = False  # no class of tests, whatever its name
    """Files of tests/unit of a tree, with their text."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def _texts(self) -> dict[str, str]:
        files = sorted((self._root / "tests" / "unit").rglob("test_*.py"))
        kept = [path for path in files if path.name not in LEFT_OUT]
        return {path.relative_to(self._root).as_posix(): path.read_text(encoding="utf-8") for path in kept}

    def stages(self, guard: Guard) -> list[list[str]]:
        """Disjoint lists of files, the likeliest first; each is run only when those before found nothing."""
        wanted = [self._naming(guard), self._of_module(guard), self._of_part(guard)]
        seen: set[str] = set()
        stages = []
        for files in wanted:
            stages.append([name for name in files if name not in seen])
            seen.update(files)
        return [stage for stage in stages if stage]

    def _naming(self, guard: Guard) -> list[str]:
        """The tests of the module itself come before others that name the id."""
        named = re.compile(re.escape(guard.id) + (r"\w" if guard.id.endswith(".") else r"(?![A-Z0-9-])"))
        found = [name for name, text in self._texts.items() if named.search(text)]
        own = f"/test_{Path(guard.file).stem}"
        return sorted(found, key=lambda name: (own not in name, name))

    def _of_module(self, guard: Guard) -> list[str]:
        stem = Path(guard.file).stem
        imports = re.compile(rf"^(?:from [\w.]*\b{stem} import|(?:from [\w.]+ )?import [^\n]*\b{stem}\b)", re.MULTILINE)
        return [name for name, text in self._texts.items() if f"/test_{stem}" in name or imports.search(text)]

    def _of_part(self, guard: Guard) -> list[str]:
        part = max((part for part in DIRECTORIES if guard.file.startswith(f"{part}/")), key=len)
        wanted = tuple(f"tests/unit/{name}/" for name in DIRECTORIES[part])
        return [name for name in self._texts if name.startswith(wanted)]

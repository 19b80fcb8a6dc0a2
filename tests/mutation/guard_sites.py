"""Every place of the sources where a check refuses something under a stable id, and the source without that one check.

A guard is a statement that raises, collects or yields an error with an id `TS-…`: given there, or by a function that
makes the error. Without it the program goes on as if the check had passed; where the error replaces another one, that
one gets through. A gate is a check id of a boot: without it, its results are always ok.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trispark.reference import ID

PARTS = ("src", "plugins/action", "lab/trispark_lab", "adapters")
GATES = ("src/trispark/gates.py", "src/trispark/images/launch_gate.py")
GATE_ID = re.compile(r"[a-z_]+\.([a-z_]+)?")
RESULT_FILE = "src/trispark/gate_result.py"
AFTER_LOAD = "after_load."
_RESULT_END = "    def line(self) -> str:"


@dataclass(frozen=True)
class Guard:
    """`function`: qualified name; `number`: which of that function's guards of this id, from 0. `line` is for a reader:
    the rest names the guard also after an edit above it."""

    id: str
    file: str
    function: str
    number: int
    line: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.id, self.file, self.function, self.number)

    def place(self) -> str:
        return f"{self.file}:{self.line} {self.function}" + (f" ({self.number + 1})" if self.number else "")


@dataclass(frozen=True)
class _Found:
    guard: Guard
    statement: ast.stmt
    in_handler: bool


def collect(root: Path) -> list[Guard]:
    """All guards below `root`, by file and line, then the gates by id."""
    found: list[Guard] = []
    makers = _makers_of_all(root)
    for path in sources(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [each.guard for each in _of_file(path.relative_to(root).as_posix(), tree, makers)]
    return found + gates(root)


def sources(root: Path) -> list[Path]:
    return sorted(path for part in PARTS for path in (root / part).rglob("*.py") if path.name != "reference.py")


def gates(root: Path) -> list[Guard]:
    """One for each check id that is given in GATES as text, and those that are judged again after the load."""
    ids: dict[str, tuple[str, int]] = {}
    for file in GATES:
        for node in ast.walk(ast.parse((root / file).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            value = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(text, str) and GATE_ID.fullmatch(text) and not text.startswith(("trispark.", AFTER_LOAD)):
                ids.setdefault(text, (file, node.lineno))
    return [Guard(name, file, "gate", 0, line) for name, (file, line) in sorted(ids.items())]


def without(root: Path, guard: Guard) -> tuple[str, str]:
    """(file, its text without the guard). LookupError when the guard is not there."""
    if guard.function == "gate":
        return RESULT_FILE, _always_ok((root / RESULT_FILE).read_text(encoding="utf-8"), guard.id)
    text = (root / guard.file).read_text(encoding="utf-8")
    for each in _of_text(root, guard.file, text):
        if each.guard.key == guard.key:
            return guard.file, _replaced(text, each.statement, "raise" if each.in_handler else "pass")
    raise LookupError(f"no guard {guard.id} in {guard.file} {guard.function}")


@cache
def _of_text(root: Path, file: str, text: str) -> list[_Found]:
    return _of_file(file, ast.parse(text), _makers_of_all(root))


def _always_ok(text: str, check_id: str) -> str:
    """`identity.mounts` alone, or every id that begins with `evidence.`; also judged again after the load."""
    test = (
        f"self.check_id.removeprefix({AFTER_LOAD!r}).startswith({check_id!r})"
        if check_id.endswith(".")
        else f"self.check_id.removeprefix({AFTER_LOAD!r}) == {check_id!r}"
    )
    added = f"    def __post_init__(self) -> None:\n        if {test}:\n"
    added += "            object.__setattr__(self, 'ok', True)\n\n"
    if text.count(_RESULT_END) != 1:
        raise LookupError(f"{RESULT_FILE} has no place for the change")
    return text.replace(_RESULT_END, added + _RESULT_END)


def _replaced(text: str, statement: ast.stmt, word: str) -> str:
    """The lines of the statement as one `word`; line numbers of the rest stay."""
    lines = text.splitlines(keepends=True)
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    before = lines[first].encode()[: statement.col_offset].decode()
    after = lines[last].encode()[statement.end_col_offset :].decode()
    lines[first : last + 1] = [before + word + after, *("\n" for _ in range(last - first))]
    return "".join(lines)


def _of_file(file: str, tree: ast.Module, makers: dict[str, dict[str, set[str]]]) -> list[_Found]:
    known, texts = _known_makers(file, tree, makers), _constants(tree)
    found: list[_Found] = []
    counts: dict[tuple[str, str], int] = {}
    for statement, function, in_handler in _statements(tree, "", False):
        ids = (name for value in _refusing(statement) for name in sorted(_ids_of(value, known, texts)))
        name = next(ids, None)
        if name is None:
            continue
        number = counts.get((name, function), 0)
        counts[name, function] = number + 1
        found.append(_Found(Guard(name, file, function, number, statement.lineno), statement, in_handler))
    return found


def _statements(node: ast.AST, function: str, in_handler: bool) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Every statement with the qualified name of its function, and whether it raises in place of a caught error."""
    for child in ast.iter_child_nodes(node):
        name, handler = function, in_handler or isinstance(child, ast.ExceptHandler)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name, handler = f"{function}.{child.name}".lstrip("."), False
        if isinstance(child, ast.stmt):
            yield child, function, in_handler and isinstance(child, ast.Raise)
        yield from _statements(child, name, handler)


def _refusing(statement: ast.stmt) -> list[ast.expr]:
    """What a guard raises, collects (`problems.append(...)`, `problems += [...]`) or yields; nothing of others."""
    if isinstance(statement, ast.Raise):
        return [statement.exc] if statement.exc else []
    if isinstance(statement, ast.AugAssign):
        return list(statement.value.elts) if isinstance(statement.value, ast.List) else []
    if isinstance(statement, ast.Expr):
        value = statement.value
        if isinstance(value, ast.Yield):
            return [value.value] if value.value else []
        if isinstance(value, ast.Call):
            return [value, *value.args]
    return []


def _ids_of(value: ast.expr, makers: dict[str, set[str]], texts: dict[str, str]) -> set[str]:
    """Ids of an error that a call makes: given to it as text, by a constant, or by a function known to make it."""
    if not isinstance(value, ast.Call):
        return set()
    given = [*value.args[:2], *(word.value for word in value.keywords if word.arg in ("id", "error_id"))]
    ids = {found[0] for each in given if (found := ID.match(_text(each, texts)))}
    if ids:
        return ids
    called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return makers.get(called, set())


def _text(value: ast.expr, texts: dict[str, str]) -> str:
    """A text, the beginning of a formatted one, or that of a constant of the module; else nothing."""
    if isinstance(value, ast.JoinedStr) and value.values:
        value = value.values[0]
    if isinstance(value, ast.Name):
        return texts.get(value.id, "")
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a module gives a name."""
    found = {}
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def _makers(tree: ast.Module) -> dict[str, set[str]]:
    """{function: ids} of the functions of a module that return an error made there."""
    found: dict[str, set[str]] = {}
    texts = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value and (ids := _ids_of(inner.value, {}, texts)):
                    found.setdefault(node.name, set()).update(ids)
    return found


@cache
def _makers_of_all(root: Path) -> dict[str, dict[str, set[str]]]:
    """{dotted module: its makers}."""
    found = {}
    for path in sources(root):
        makers = _makers(ast.parse(path.read_text(encoding="utf-8")))
        if makers:
            found[_module(path.relative_to(root).as_posix())] = makers
    return found


def _module(file: str) -> str:
    for part in ("src/", "lab/", "adapters/"):
        file = file.removeprefix(part)
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _known_makers(file: str, tree: ast.Module, makers: dict[str, dict[str, set[str]]]) -> dict[str, set[str]]:
    """Makers that a file can call: its own, imported ones, and those of imported modules."""
    known = dict(makers.get(_module(file), {}))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if alias.name in makers.get(node.module, {}):
                known[alias.asname or alias.name] = makers[node.module][alias.name]
            else:
                for name, ids in makers.get(f"{node.module}.{alias.name}", {}).items():
                    known.setdefault(name, ids)
    return known

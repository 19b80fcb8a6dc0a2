"""The interface of a build from its Python sources, without running any of them."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trispark.engine_api.interface import Symbol

DEPTH: Final = 8
"""How many imports and base classes a name is followed through."""

Scope = dict[str, ast.stmt]


class SourceInterface:
    """`read` gives the text of a file by its path below a directory of sys.path, None when it is not there."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = read
        self._modules: dict[str, Scope | None] = {}

    @classmethod
    def of_wheel(cls, wheel: Path) -> SourceInterface:
        """The sources inside a wheel; read when a module is asked for."""
        archive = zipfile.ZipFile(wheel)
        names = frozenset(archive.namelist())
        return cls(lambda name: archive.read(name).decode("utf-8") if name in names else None)

    @classmethod
    def of_directory(cls, directory: Path) -> SourceInterface:
        """The sources below a directory as it would be on sys.path."""

        def read(name: str) -> str | None:
            path = directory / name
            return path.read_text(encoding="utf-8") if path.is_file() else None

        return cls(read)

    def has_module(self, module: str) -> bool:
        return self._scope(module) is not None

    def find(self, module: str, symbol: str) -> Symbol | bool | None:
        scope = self._scope(module)
        if scope is None:
            return False
        found: tuple[str, Scope, ast.stmt] | None = None
        for name in symbol.split("."):
            found = self._step(module, scope, name) if found is None else self._member(found, name)
            if found is None:
                return False
        assert found is not None
        return self._symbol(found)

    def _scope(self, module: str) -> Scope | None:
        if module not in self._modules:
            path = module.replace(".", "/")
            text = self._read(f"{path}.py")
            if text is None:
                text = self._read(f"{path}/__init__.py")
            self._modules[module] = None if text is None else dict(_bound(ast.parse(text).body))
        return self._modules[module]

    def _step(self, module: str, scope: Scope, name: str, depth: int = 0) -> tuple[str, Scope, ast.stmt] | None:
        """Where a name of a module is defined, followed through `from x import name` as far as there are sources."""
        statement = scope.get(name)
        if statement is None:
            return None
        if isinstance(statement, ast.ImportFrom) and depth < DEPTH:
            origin = self._origin(module, statement)
            original = next((alias.name for alias in statement.names if name in (alias.asname, alias.name)), name)
            inner = self._scope(origin)
            followed = None if inner is None else self._step(origin, inner, original, depth + 1)
            return followed or (module, scope, statement)
        return module, scope, statement

    def _origin(self, module: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        is_package = self._read(f"{module.replace('.', '/')}/__init__.py") is not None
        parts = module.split(".")
        base = parts[: len(parts) - statement.level + (1 if is_package else 0)]
        return ".".join([*base, *([statement.module] if statement.module else [])])

    def _member(
        self, owner: tuple[str, Scope, ast.stmt], name: str, depth: int = 0
    ) -> tuple[str, Scope, ast.stmt] | None:
        """A member of a class, also of its bases."""
        module, scope, statement = owner
        if not isinstance(statement, ast.ClassDef):
            return None
        own = dict(_bound(statement.body)).get(name)
        if own is not None:
            return module, scope, own
        for base in self._bases(module, scope, statement, depth):
            if (found := self._member(base, name, depth + 1)) is not None:
                return found
        return None

    def _bases(
        self, module: str, scope: Scope, statement: ast.ClassDef, depth: int
    ) -> Iterator[tuple[str, Scope, ast.stmt]]:
        if depth >= DEPTH:
            return
        for base in statement.bases:
            if isinstance(base, ast.Name) and (found := self._step(module, scope, base.id)) is not None:
                yield found

    def _symbol(self, found: tuple[str, Scope, ast.stmt]) -> Symbol:
        statement = found[2]
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return Symbol(frozenset(_parameters(statement.args)))
        if isinstance(statement, ast.ClassDef):
            made = self._member(found, "__init__")
            inner = made[2] if made is not None else None
            parameters = frozenset(_parameters(inner.args)) if isinstance(inner, ast.FunctionDef) else frozenset()
            return Symbol(parameters, frozenset(self._attributes(found)))
        return Symbol()

    def _attributes(self, owner: tuple[str, Scope, ast.stmt], depth: int = 0) -> Iterator[str]:
        """What the methods of a class and of its bases set on `self`, and what its body declares."""
        module, scope, statement = owner
        if not isinstance(statement, ast.ClassDef):
            return
        yield from dict(_bound(statement.body))
        for node in ast.walk(statement):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    yield name
        for base in self._bases(module, scope, statement, depth):
            yield from self._attributes(base, depth + 1)


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Every name that the statements of a module or class bind, also below if, try and with; the last one counts."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name, statement
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    yield alias.asname or alias.name.partition(".")[0], statement
            case ast.Assign():
                for target in statement.targets:
                    yield from ((name.id, statement) for name in ast.walk(target) if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, statement
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from _bound(statement.orelse)  # the body is for type checkers alone
            case ast.If() | ast.For() | ast.While():
                yield from _bound(statement.orelse)
                yield from _bound(statement.body)
            case ast.With():
                yield from _bound(statement.body)
            case ast.Try():
                for handler in statement.handlers:
                    yield from _bound(handler.body)
                for part in (statement.orelse, statement.finalbody, statement.body):
                    yield from _bound(part)


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
        yield from (argument.arg for argument in group)
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            yield rest.arg

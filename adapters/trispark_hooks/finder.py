"""Meta-path finder that runs the registered installers right after a hooked module was executed."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from . import evidence, needs
from .binding import build
from .registry import HOOKS, Hook, HookError, hooks_of

EXIT_FAILED = 70
DONE = "__trispark_hooks__"

Fatal = Callable[[str], None]


def die(message: str) -> None:
    """Print one line and end the process, from whatever thread the import ran in."""
    os.write(2, f"{message}\n".encode())
    os._exit(EXIT_FAILED)


def apply_hooks(module: ModuleType, environ: Mapping[str, str], hooks: tuple[Hook, ...] = HOOKS) -> None:
    """Run the enabled installers of `module` in their order, each once, after all that their adapters need was found.

    HookError when something is missing (then no installer of the module ran) or an installer fails; the adapter is
    reported as refused.
    """
    done: set[str] = module.__dict__.setdefault(DONE, set())
    wanted = [hook for hook in hooks_of(module.__name__, hooks) if hook.enabled(environ) and hook.installer not in done]
    for hook in wanted:
        try:
            needs.require(module, hook.adapter)
        except HookError as error:
            evidence.report(hook.adapter, "refused", str(error))
            raise
    for hook in wanted:
        name, _, function = hook.installer.partition(":")
        try:
            getattr(importlib.import_module(name), function)(module)
        except HookError as error:
            evidence.report(hook.adapter, "refused", str(error))
            raise
        except Exception as error:
            evidence.report(hook.adapter, "refused", f"{type(error).__name__}: {error}")
            raise HookError(
                f"TS-ADAPTER-INSTALL: hook not installed [where: {build()}, {hook.installer} in {module.__name__}] "
                f"expected: installed; observed: {type(error).__name__}: {error}; "
                f"remedy: use adapters made for this engine, or {hook.remedy}"
            ) from error
        done.add(hook.installer)


class HookLoader(Loader):
    """The module's own loader, followed by the hooks."""

    def __init__(self, inner: Loader, environ: Mapping[str, str], hooks: tuple[Hook, ...], fatal: Fatal) -> None:
        self._inner = inner
        self._environ = environ
        self._hooks = hooks
        self._fatal = fatal

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        try:
            apply_hooks(module, self._environ, self._hooks)
        except HookError as error:
            self._fatal(str(error))
            raise


class HookFinder(MetaPathFinder):
    """Answers for the modules of its hooks alone."""

    def __init__(self, environ: Mapping[str, str], hooks: tuple[Hook, ...] = HOOKS, fatal: Fatal = die) -> None:
        self._environ = environ
        self._hooks = hooks
        self._fatal = fatal
        self._names = frozenset(hook.module for hook in hooks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None  # absent: the import fails as it would without us
        spec.loader = HookLoader(spec.loader, self._environ, self._hooks, self._fatal)
        return spec


def install(environ: Mapping[str, str] | None = None, hooks: tuple[Hook, ...] = HOOKS, fatal: Fatal = die) -> None:
    """Put the finder first, once, for the hooks that are enabled and whose engine is here; without any, nothing.

    HookError when a module of them was imported before (TS-ADAPTER-LATE), or this build of the engine does not have it
    (TS-ADAPTER-MODULE): an adapter that waits for a module that never comes would be off without a word.
    """
    environment = os.environ if environ is None else environ
    if any(isinstance(finder, HookFinder) for finder in sys.meta_path):
        return
    wanted = tuple(hook for hook in hooks if hook.enabled(environment))
    here = {top: _places(top) for top in {hook.module.partition(".")[0] for hook in wanted}}
    enabled = tuple(hook for hook in wanted if here[hook.module.partition(".")[0]])
    if not enabled:
        return
    late = sorted({hook.module for hook in enabled if hook.module in sys.modules})
    if late:
        raise HookError(
            f"TS-ADAPTER-LATE: hooked modules were imported before the hooks [where: {late}] expected: hooks first; "
            "observed: already imported; remedy: start the engine with the adapters first on PYTHONPATH"
        )
    for hook in enabled:
        top, _, below = hook.module.partition(".")
        if below and not hook.optional and not any(_has(place, below) for place in here[top]):
            raise HookError(
                f"TS-ADAPTER-MODULE: the engine lacks a module [where: {build()}, adapter {hook.adapter}] "
                f"expected: {hook.module}; observed: no such file in {', '.join(map(str, here[top]))}; "
                "remedy: ./trispark adapters check names the builds that this adapter binds to"
            )
    sys.meta_path.insert(0, HookFinder(environment, enabled, fatal))


def _places(top: str) -> tuple[Path, ...]:
    """Where a top-level package or module lies, without importing it; empty when it is not here."""
    if (loaded := sys.modules.get(top)) is not None:
        return tuple(map(Path, getattr(loaded, "__path__", ()))) or (Path(getattr(loaded, "__file__", None) or top),)
    spec = importlib.util.find_spec(top)
    if spec is None:
        return ()
    return tuple(map(Path, spec.submodule_search_locations or ())) or (Path(spec.origin or top),)


def _has(package: Path, below: str) -> bool:
    path = package.joinpath(*below.split("."))
    return path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file()

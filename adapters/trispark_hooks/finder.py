"""Meta-path finder that runs the registered installers right after a hooked module was executed."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from .registry import HOOKS, Hook, HookError, hooks_of

EXIT_FAILED = 70
DONE = "__trispark_hooks__"

Fatal = Callable[[str], None]


def die(message: str) -> None:
    """Print one line and end the process, from whatever thread the import ran in."""
    os.write(2, f"{message}\n".encode())
    os._exit(EXIT_FAILED)


def apply_hooks(module: ModuleType, environ: Mapping[str, str], hooks: tuple[Hook, ...] = HOOKS) -> None:
    """Run the enabled installers of `module`, each once. HookError when one fails."""
    done: set[str] = module.__dict__.setdefault(DONE, set())
    for hook in hooks_of(module.__name__, hooks):
        if hook.installer in done or not hook.enabled(environ):
            continue
        name, _, function = hook.installer.partition(":")
        try:
            getattr(importlib.import_module(name), function)(module)
        except Exception as error:
            raise HookError(
                f"TS-ADAPTER-INSTALL: hook not installed [where: {hook.installer} in {module.__name__}] "
                f"expected: installed; observed: {type(error).__name__}: {error}; "
                f"remedy: use adapters made for this engine, or {hook.switch}=0"
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
    """Answers for the registered names alone."""

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
    """Put the finder first, once. HookError when a module of an enabled hook was imported before."""
    environment = os.environ if environ is None else environ
    if any(isinstance(finder, HookFinder) for finder in sys.meta_path):
        return
    late = sorted({hook.module for hook in hooks if hook.enabled(environment) and hook.module in sys.modules})
    if late:
        raise HookError(
            f"TS-ADAPTER-LATE: hooked modules were imported before the hooks [where: {late}] expected: hooks first; "
            "observed: already imported; remedy: start the engine with the adapters first on PYTHONPATH"
        )
    sys.meta_path.insert(0, HookFinder(environment, hooks, fatal))

"""Which modules are hooked, by whom and under which switch. The order of the hooks of a module is the order here."""

from collections.abc import Mapping
from dataclasses import dataclass


class HookError(Exception):
    """A hook can not be installed; one line with a stable id."""


@dataclass(frozen=True)
class Hook:
    """`installer` is "module:function", called with the hooked module; `switch` names the variable that turns it on."""

    module: str
    installer: str
    switch: str

    def enabled(self, environ: Mapping[str, str]) -> bool:
        """On for 1; off for 0, empty and unset. Another value is an error, not a guess."""
        value = environ.get(self.switch, "")
        if value not in ("", "0", "1"):
            raise HookError(
                f"TS-ADAPTER-SWITCH: switch out of range [where: {self.module}] expected: {self.switch}=0 or 1; "
                f"observed: {self.switch}={value!r}; remedy: set 0 or 1"
            )
        return value == "1"


HOOKS: tuple[Hook, ...] = (
    Hook("trispark_lab.projection", "trispark_hooks.lab_wo_a_w8:install", "DSV41_WO_A_W8"),
    Hook("trispark_lab.engram", "trispark_hooks.lab_engram_prefetch:install", "DSV41_ENGRAM_PREFETCH"),
)


def hooks_of(module: str, hooks: tuple[Hook, ...] = HOOKS) -> tuple[Hook, ...]:
    """Hooks of one module, never empty: a module that is not registered is an error."""
    found = tuple(hook for hook in hooks if hook.module == module)
    if not found:
        raise HookError(
            f"TS-ADAPTER-UNKNOWN: module has no hook [where: {module}] expected: one of "
            f"{sorted({hook.module for hook in hooks})}; observed: {module}; remedy: add it to the registry"
        )
    return found

"""Run inside the engine's environment: imports the hooked modules of a release with adapters on, and says what bound.

    PYTHONPATH=adapters:RELEASE:STAND_INS python import_check.py ADAPTER...

The last line is JSON: {"bound": {adapter: number of its hooks that are installed}, "refused": {adapter: why}}.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Final

ON: Final = {
    "DSV41_AUTOTUNE_KEEP": "1",
    "DSV41_BLOCK_VERIFY": "1",
    "DSV41_DRAFT_HEAD_FP8": "1",
    "DSV41_DRAFT_TAU": "0.8",
    "DSV41_ENGRAM_PREFETCH": "1",
    "DSV41_FOLDED_FENCE": "1",
    "DSV41_MXFP8_BACKEND": "b12x",
    "DSV41_PACKED_DIR": "/engram",
    "DSV41_PADDED_ATTENTION_SKIP": "1",
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": "8192",
    "DSV41_SOURCE": "/model",
    "DSV41_TP_PAD": "1",
    "DSV41_VERIFY_CAP": "conf:0.1",
    "DSV41_WO_A_W8": "1",
    "OFFLOAD_MODE": "nvme",
}
"""Every switch of the registry turned on, and what installers read beside it."""
BESIDE: Final = {"DSPARK_BLOCK_SIZE": "5", "SGLANG_DSPARK_FOLDED_SAMPLING": "2", "TP_SIZE": "3"}


def main(adapters: list[str]) -> None:
    from trispark_hooks import finder
    from trispark_hooks.registry import HOOKS, Hook, HookError

    os.environ.update({**ON, **BESIDE})
    wanted = tuple(hook for hook in HOOKS if hook.adapter in adapters)
    refused: dict[str, str] = {}
    bound = dict.fromkeys(adapters, 0)
    together = finder.apply_hooks

    def apart(module: ModuleType, environ: Mapping[str, str], hooks: tuple[Hook, ...] = HOOKS) -> None:
        """Each hook by itself: a refusal is that of its adapter alone, and the import goes on."""
        for hook in (hook for hook in hooks if hook.module == module.__name__):
            try:
                together(module, environ, (hook,))
                bound[hook.adapter] += 1
            except HookError as error:
                refused.setdefault(hook.adapter, str(error))

    finder.apply_hooks = apart
    try:
        finder.install(dict(os.environ), wanted)
        for module in dict.fromkeys(hook.module for hook in wanted):
            if any(not hook.optional for hook in wanted if hook.module == module):
                importlib.import_module(module)
    except HookError as error:
        refused.update(dict.fromkeys(adapters, str(error)))
    print(json.dumps({"bound": bound, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1:])

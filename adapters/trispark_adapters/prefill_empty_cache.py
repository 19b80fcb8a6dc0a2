"""The allocator emptied after prefills of long sequences, whose buffers would otherwise stay reserved on a full node.

DSV41_PREFILL_EMPTY_CACHE_TOKENS is the length from which it is done, 0 for never. Only prompts count, never decoding or
verification, and nothing is done inside a capture. Facts: field 3.9.
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "prefill_empty_cache"
VARIABLE: Final = "DSV41_PREFILL_EMPTY_CACHE_TOKENS"
DEFAULT: Final = 8192
MAXIMUM: Final = 1 << 20
COUNTERS: Final = evidence.counters(NAME, "emptied")


def threshold(text: str) -> int:
    """Tokens; 0 is never. HookError TS-ADAPTER-EMPTY-CACHE for what is no such number."""
    if not text:
        return DEFAULT
    if text.isascii() and text.isdigit() and int(text) <= MAXIMUM:
        return int(text)
    raise HookError(
        f"TS-ADAPTER-EMPTY-CACHE: the length is out of range [where: environment] expected: {VARIABLE} from 0 to "
        f"{MAXIMUM}; observed: {text!r}; remedy: correct it"
    )


def longest(batch: Any) -> int:
    """Tokens of the longest sequence of a prompt's forward, 0 for another forward. Reads host memory alone."""
    mode = batch.forward_mode
    if not mode.is_extend_without_speculative():
        return 0
    lengths = batch.seq_lens_cpu
    return 0 if lengths is None or len(lengths) == 0 else int(lengths.max())


def install(module: ModuleType) -> None:
    """Wrap ModelRunner.forward of sglang.srt.model_executor.model_runner."""
    binding.require_parameters(binding.symbol(module, "ModelRunner.forward"), "forward_batch")
    tokens = threshold(os.environ.get(VARIABLE, ""))
    if tokens == 0:
        evidence.report(NAME, "disabled", "its length is 0")
        return
    binding.replace(module, "ModelRunner.forward", NAME, lambda original: _wrap(tokens, original))
    evidence.write(f"DSV41 prefill empty_cache hook installed (extend forwards with a sequence >= {tokens} tokens)")
    evidence.report(NAME, "armed", tokens=tokens)


def _wrap(tokens: int, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        long = longest(forward_batch) >= tokens  # the forward may give the batch other contents
        result = original(self, forward_batch, *args, **kwargs)
        if long and not torch.cuda.is_current_stream_capturing():
            torch.cuda.empty_cache()
            COUNTERS.add("emptied")
        return result

    return forward

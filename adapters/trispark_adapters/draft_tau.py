"""Sampled proposals drawn at a multiple of the request's temperature (facts of the field 3.4, engine 2.4).

The temperatures that are staged for the folded sampler are multiplied; the acceptance divides by the same tensor, so
the output's distribution stays. Greedy rows are left as they are. It needs the folded sampler: SGLang up to 0.5.21
samples in the draft graph only where it folds sampling, which it does not choose by itself for this model
(SGLANG_DSPARK_FOLDED_SAMPLING=2 forces it); without it the adapter says that it is disabled. From 0.5.22 the sampler
always folds, and the temperatures of the draw (0 for greedy rows) are a tensor of their own, scaled together with the
others.
"""

import math
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from trispark_hooks.binding import replace, require_parameters, symbol
from trispark_hooks.evidence import Counters, counters, report, write
from trispark_hooks.registry import HookError

NAME: Final = "draft_tau"
SWITCH: Final = "DSV41_DRAFT_TAU"
LEAST_TEMPERATURE: Final = 1e-5
"""The engine's own bound of a staged temperature."""
SAMPLING_GRAPH: Final = "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH"
"""With it SGLang 0.5.23 takes the draft's temperatures for the target's, which a multiplier would make wrong."""


def multiplier(environ: Mapping[str, str]) -> float:
    """DSV41_DRAFT_TAU, 1 where it is unset or empty. HookError TS-ADAPTER-SWITCH for what is no positive number."""
    text = environ.get(SWITCH, "") or "1"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise HookError(
            f"TS-ADAPTER-SWITCH: switch out of range [where: {NAME}] expected: {SWITCH}= a positive number; "
            f"observed: {SWITCH}={text!r}; remedy: set a multiplier such as 0.8, or 1"
        )
    return value


def scale(sampler: Any, bs: int, tau: float) -> None:
    """Multiply the staged temperatures of the sampled rows among the first `bs` by `tau`, in place.

    sampler: DsparkDraftSampler; float32 [max_bs] temperatures, bool [max_bs] greedy_mask.
    """
    import torch

    staged = getattr(sampler, "params", sampler)
    greedy = staged.greedy_mask[:bs]
    for name in ("temperatures", "step_temperatures"):
        values = getattr(staged, name, None)
        if values is not None:
            rows = values[:bs]
            rows.copy_(torch.where(greedy, rows, (rows * tau).clamp(min=LEAST_TEMPERATURE)))


def folds(sampler: Any) -> bool:
    """Whether `sampler` (None: the proposal stays eager) draws sampled rows in the draft graph."""
    if sampler is None or getattr(sampler, "greedy_draft", False):
        return False
    return bool(getattr(sampler, "folded_sampling", hasattr(sampler, "params")))


def install(module: ModuleType) -> None:
    """Wrap DsparkDraftSampler.stage_sampling_params and maybe_build_draft_sampler of ...dspark_draft_sampler."""
    tau = multiplier(os.environ)
    if tau == 1:
        return
    require_parameters(symbol(module, "DsparkDraftSampler.stage_sampling_params"), "bs", "sampling_info")
    symbol(module, "maybe_build_draft_sampler")
    later = hasattr(module, "resolve_draft_params")
    if later and os.environ.get(SAMPLING_GRAPH, "").lower() not in ("", "0", "false", "no", "n"):
        _disabled(f"{SAMPLING_GRAPH} takes the draft's temperatures for the target's: set it to 0")
        return
    count = counters(NAME, "sampled", "greedy", "unfolded")

    def wrap_build(original: Any) -> Any:
        def maybe_build_draft_sampler(*args: Any, **kwargs: Any) -> Any:
            sampler = original(*args, **kwargs)
            _say_built(sampler, tau)
            return sampler

        return maybe_build_draft_sampler

    def wrap_stage(original: Any) -> Any:
        def stage_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            info = kwargs.get("sampling_info")
            if info is None or info.is_all_greedy:
                count.add("greedy")
            elif not folds(self):
                count.add("unfolded")
            else:
                scale(self, kwargs["bs"], tau)
                _note(count)
            return result

        return stage_sampling_params

    replace(module, "maybe_build_draft_sampler", NAME, wrap_build)
    replace(module, "DsparkDraftSampler.stage_sampling_params", NAME, wrap_stage)
    report(NAME, "armed", tau=f"{tau:g}")


def _say_built(sampler: Any, tau: float) -> None:
    if folds(sampler):
        write(f"[draft_tau] draft temperature x{tau:g}")
        report(NAME, "active", tau=f"{tau:g}")
    elif sampler is None:
        _disabled("the draft's proposal is kept out of its graph")
    elif getattr(sampler, "greedy_draft", False):
        _disabled("the draft is greedy for sampled requests too: unset SGLANG_DSPARK_USE_GREEDY_DRAFT")
    else:
        _disabled("sampling is not folded into the draft graph: set SGLANG_DSPARK_FOLDED_SAMPLING=2")


def _disabled(reason: str) -> None:
    report(NAME, "disabled", reason)
    write(f"[draft_tau] disabled: {reason}")


def _note(count: Counters) -> None:
    if not count.read()["sampled"]:
        write("[draft_tau] sampled proposals=1")
    count.add("sampled")

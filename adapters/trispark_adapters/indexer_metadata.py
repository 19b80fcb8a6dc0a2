"""The planner of the sparse indexer's rows on SM12x for V4.1's compression ratios 1 and 2.

The kernel that reads the plan splits keys by 128; the engine's own planner writes plans for 256 unless its FP4 indexer
is on. For these ratios the plan is made by DeepGEMM, whose split is 128. Other GPUs and ratios stay as they are.

Facts: field 3.9, fork Appendix A; engine 0.5.21 to 0.5.23, where the field says the same of the FP4 indexer.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding, evidence

NAME: Final = "indexer_metadata"
RATIOS: Final = (1, 2)
FIELD: Final = "force_deep_gemm_metadata"
COUNTERS: Final = evidence.counters(NAME, "forced")


def install(module: ModuleType) -> None:
    """Wrap PagedIndexerMetadata.__post_init__ of sglang.srt.layers.attention.dsv4.metadata."""
    metadata = binding.symbol(module, "PagedIndexerMetadata")
    binding.require_parameters(metadata.__init__, FIELD, "compress_ratio")
    binding.symbol(module, "_IS_SM120")
    if not module._IS_SM120:
        evidence.report(NAME, "disabled", "the GPU is none of SM12x")
        return
    binding.replace(module, "PagedIndexerMetadata.__post_init__", NAME, _wrap)
    evidence.report(NAME, "armed", ratios=",".join(map(str, RATIOS)))


def _wrap(original: Callable[..., None]) -> Callable[..., None]:
    def plan(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.compress_ratio in RATIOS and not self.force_deep_gemm_metadata:
            # Before the plan is made; copies between two metadata compare the field, so both have it.
            self.force_deep_gemm_metadata = True
            COUNTERS.add("forced")
        original(self, *args, **kwargs)

    return plan

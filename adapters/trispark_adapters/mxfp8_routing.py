"""Dense MXFP8 products on the kernel that DSV41_MXFP8_BACKEND names, in place of the engine's choice of CUTLASS.

The engine chooses between CUTLASS and CuTe-DSL; FlashInfer's `b12x`, a warp-level kernel for SM120 and SM121, reads the
same swizzled scales, so only its name is passed on. It takes widths that 128 divides; others stay on CUTLASS. Where
FlashInfer does not have the kernel for this GPU, nothing is routed and the boot ends. Facts: field 3.9 (17 ms a step in
place of 50 ms).
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "mxfp8_routing"
VARIABLE: Final = "DSV41_MXFP8_BACKEND"
BACKENDS: Final = ("b12x", "cudnn", "cutlass")
NATIVE: Final = "cutlass"
WIDTHS: Final = {"b12x": 128}
"""What must divide the contracted width; other backends take what CUTLASS takes."""
COUNTERS: Final = evidence.counters(NAME, "routed", "native")


def chosen(value: str) -> str:
    """Of the variable. HookError TS-ADAPTER-MXFP8 for another name."""
    if value in BACKENDS:
        return value
    raise HookError(
        f"TS-ADAPTER-MXFP8: no such kernel for dense MXFP8 products [where: environment] expected: {VARIABLE} one of "
        f"{', '.join(BACKENDS)}; observed: {value!r}; remedy: correct it"
    )


def install(module: ModuleType) -> None:
    """Wrap the two dispatchers of sglang.srt.layers.quantization.fp8_utils, before others import them by value."""
    backend = chosen(os.environ.get(VARIABLE, "") or "b12x")
    linear = binding.symbol(module, "flashinfer_mxfp8_blockscaled_linear")
    binding.require_parameters(linear, "input", "weight", "weight_scale", "backend")
    for name in ("dispatch_block_fp8_mxfp8_linear", "dispatch_w8a8_mxfp8_linear", "get_device_sm"):
        binding.symbol(module, name)
    for name in ("dispatch_block_fp8_mxfp8_linear", "dispatch_w8a8_mxfp8_linear"):
        binding.replace(module, name, NAME, lambda original: _dispatch(module, backend, original))
    evidence.report(NAME, "armed", backend=backend)


def _dispatch(module: ModuleType, backend: str, original: Callable[..., Any]) -> Callable[..., Any]:
    said: list[str] = []

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        keywords: dict[str, Any] = getattr(found, "keywords", {})
        function = getattr(found, "func", None)
        if function is not module.flashinfer_mxfp8_blockscaled_linear or keywords.get("backend") != NATIVE:
            return found  # the engine chose something else than CUTLASS, and prepared scales for that
        require_support(module, backend)
        if not said:
            said.append(backend)
            where = f"sm{module.get_device_sm()}, in place of {NATIVE}"
            evidence.write(f"DSV41 MXFP8 dense linears routed to FlashInfer backend '{backend}' ({where})")
            evidence.report(NAME, "active", backend=backend)
        return route(found, backend)

    return dispatch


def require_support(module: ModuleType, backend: str) -> None:
    """HookError TS-ADAPTER-MXFP8-KERNEL where FlashInfer has no such kernel for this GPU."""
    kernel = getattr(module, "_raw_flashinfer_mm_mxfp8", None)
    sm = module.get_device_sm()
    if kernel is None or not kernel.is_backend_supported(backend, sm):
        raise HookError(
            f"TS-ADAPTER-MXFP8-KERNEL: FlashInfer lacks the kernel that was asked for [where: {binding.build()}] "
            f"expected: mm_mxfp8 backend {backend} on sm{sm}; observed: "
            f"{'no FlashInfer' if kernel is None else 'not supported'}; remedy: {VARIABLE}={NATIVE}, or an image whose "
            "FlashInfer has it"
        )


def route(native: Any, backend: str) -> Callable[..., Any]:
    """`native`, a partial of the engine's linear function, with another kernel where the width allows it."""
    step = WIDTHS.get(backend, 1)
    routed = type(native)(native.func, *native.args, **{**native.keywords, "backend": backend})

    def linear(input: Any, *args: Any, **kwargs: Any) -> Any:
        if input.shape[-1] % step:
            COUNTERS.add("native")
            return native(input, *args, **kwargs)
        COUNTERS.add("routed")
        return routed(input, *args, **kwargs)

    return linear

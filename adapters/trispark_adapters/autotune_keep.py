"""Kernel tactics of FlashInfer's tuner kept from boot to boot of one launch, so that boots can be repeated.

The engine lets ranks reuse their files only when all are equal, which under expert parallelism they never are: each
rank times its own experts. Here they must be loadable for the same launch instead; the gate itself, a collective of all
ranks, stays the engine's. A file of another launch is deleted; where the launch is not known, nothing is replaced.

Facts: field 3.8, fork 3.4, engine facts 2.8.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trispark_adapters.autotune_files import Kept, folder_of
from trispark_adapters.autotune_launch import Launch, launch_of, sources, versions
from trispark_hooks import binding, evidence

NAME: Final = "autotune_keep"


def install(module: ModuleType) -> None:
    """Wrap three functions of sglang.srt.model_executor.runner.flashinfer_autotune."""
    binding.require_parameters(binding.symbol(module, "_autotune_cache_digest"), "cache_path", "env")
    binding.require_parameters(binding.symbol(module, "flashinfer_autotune_context"), "model_runner")
    binding.require_parameters(binding.symbol(module, "flashinfer_autotune_cache_path"), "model_runner")
    binding.symbol(module, "_drop_diverged_autotune_cache")  # the gate that asks for the digest
    launch = launch_of(sys.argv, os.environ, {**versions(), "sglang sources": sources(_package(module))})
    if not launch.known:
        evidence.report(NAME, "disabled", "there is nothing to recognise the launch by")
        return
    binding.replace(module, "flashinfer_autotune_cache_path", NAME, lambda original: _path(launch, original))
    binding.replace(module, "_autotune_cache_digest", NAME, lambda _: _digest(launch))
    binding.replace(module, "flashinfer_autotune_context", NAME, lambda original: _context(module, launch, original))
    evidence.write("[autotune_keep] armed")
    evidence.report(NAME, "armed")


def _package(module: ModuleType) -> Path:
    """The engine's package, of which `module` is sglang.srt.model_executor.runner.flashinfer_autotune."""
    return Path(module.__file__ or "").parents[3]


def _path(launch: Launch, original: Callable[..., Path]) -> Callable[..., Path]:
    def cache_path(*args: Any, **kwargs: Any) -> Path:
        path = folder_of(original(*args, **kwargs), launch)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    return cache_path


def _digest(launch: Launch) -> Callable[..., str]:
    def digest(cache_path: Path, env: dict[str, Any]) -> str:
        return Kept(cache_path, launch).digest(env)

    return digest


def _context(module: ModuleType, launch: Launch, original: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def context(model_runner: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        kept = Kept(module.flashinfer_autotune_cache_path(model_runner), launch)
        kept.prepare()
        with original(model_runner, *args, **kwargs) as value:
            before, tunings = kept.content(), kept.tunings  # after the gate: what all ranks agreed to reuse
            yield value
        how = "reused" if before and before == kept.content() else "tuned and saved"
        if kept.save(tunings + 1):
            evidence.write(f"[autotune_keep] {how} {kept.name}")

    return context

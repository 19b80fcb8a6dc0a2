"""Results of the folded acceptance copied before the next replay can overwrite them.

The folded path returns views of buffers that the verify graph writes again in the next step; with overlapping steps
the copy to the host may still be reading them (sglang#40919). The six results are cloned on the stream of the forward,
so that every later reader sees this step's. SGLang 0.5.23 can also accept sampled batches in a graph of its own whose
results are the same views; they are cloned too.

Source: facts of the field 3.7, engine 2.7.
"""

from types import ModuleType
from typing import Any, Final

from trispark_hooks.binding import build, replace, require_parameters, symbol
from trispark_hooks.evidence import counters, report, write
from trispark_hooks.registry import HookError

NAME: Final = "folded_fence"
FIELDS: Final = ("correct_len", "bonus", "cap_trim_lens", "commit_lens", "new_seq_lens", "out_tokens")


def clone(result: Any) -> Any:
    """An AcceptOuts of its own memory."""
    return type(result)(**{name: getattr(result, name).clone() for name in FIELDS})


def install(module: ModuleType) -> None:
    """Wrap TargetVerifyExecutor.accept_and_finalize of ...dspark_components.dspark_verify."""
    require_parameters(symbol(module, "TargetVerifyExecutor.accept_and_finalize"), "folded_accept")
    fields = tuple(symbol(module, "AcceptOuts").__struct_fields__)
    if set(fields) != set(FIELDS):
        raise HookError(
            f"TS-ADAPTER-SIGNATURE: a result of the engine has other fields [where: {build()}, "
            f"{module.__name__}.AcceptOuts] expected: {', '.join(FIELDS)}; observed: {', '.join(fields)}; "
            "remedy: ./trispark adapters check names the builds that this adapter binds to"
        )
    count = counters(NAME, "fenced", "eager")

    def wrap(original: Any) -> Any:
        def accept_and_finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not kwargs.get("folded_accept"):
                count.add("eager")
                return result
            if not count.read()["fenced"]:  # an engine whose steps all stay eager has nothing to fence
                write("[folded_fence] first results of the folded path fenced")
            count.add("fenced")
            return clone(result)

        return accept_and_finalize

    replace(module, "TargetVerifyExecutor.accept_and_finalize", NAME, wrap)
    report(NAME, "armed")
    write("[folded_fence] armed: six results of the folded path are cloned on the forward stream")


def install_sampling_graph(module: ModuleType) -> None:
    """Wrap DsparkSamplingAcceptGraph.run of ...dspark_components.dspark_sampling_accept_graph, new in 0.5.23."""
    symbol(module, "DsparkSamplingAcceptGraph.run")
    count = counters(NAME, "graph")

    def wrap(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if result is None:
                return None
            count.add("graph")
            return clone(result)

        return run

    replace(module, "DsparkSamplingAcceptGraph.run", NAME, wrap)

"""The model padded to a number of ranks that does not divide it: heads, output groups, vocabulary, draft experts.

The configuration is padded when the model is built, tensors when they are loaded. Padded heads are exactly zero, padded
rows of the vocabulary are cut off by the engine before anything is sampled, a padded expert is never chosen. Whatever
does not fit ends the boot. Switch: DSV41_TP_PAD=1. Facts: field 3.9, 3.10, fork 2.2.
"""

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final

from trispark_adapters.pad_plan import Plan, plan_of_config, remember, remembered, vocabulary_padding
from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "tp3_pad"
PLAN: Final = "trispark_plan"
"""Attribute of a padded model: its `Plan`."""


def install_model(module: ModuleType) -> None:
    """Pad DeepseekV4ForCausalLM of sglang.srt.models.deepseek_v4."""
    from trispark_adapters.pad_tensors import target_weights

    _install(module, "DeepseekV4ForCausalLM", target_weights)


def install_draft(module: ModuleType) -> None:
    """Pad DeepseekV4ForCausalLMDSpark of sglang.srt.models.deepseek_v4_dspark."""
    from trispark_adapters.pad_tensors import draft_weights

    _install(module, "DeepseekV4ForCausalLMDSpark", draft_weights)


def install_vocabulary(module: ModuleType) -> None:
    """Pad VocabParallelEmbedding of sglang.srt.layers.vocab_parallel_embedding, as the engine does from 0.5.22 on."""
    embedding = binding.symbol(module, "VocabParallelEmbedding")
    binding.symbol(module, "get_parallel")
    binding.require_parameters(embedding.__init__, "num_embeddings", "padding_size", "enable_tp", "use_attn_tp_group")
    binding.replace(module, "VocabParallelEmbedding.__init__", NAME, lambda original: _vocabulary(module, original))


def pad_config(config: Any, world: int) -> Plan:
    """Pad `config` in place, once; what was padded. HookError TS-ADAPTER-PAD."""
    known = remembered(config)
    if known is not None:
        if known.world != world:
            raise HookError(
                f"TS-ADAPTER-PAD-TWICE: a configuration was padded for another number of ranks [where: {NAME}] "
                f"expected: {known.world}; observed: {world}; remedy: report this, with the log"
            )
        return known
    plan = plan_of_config(config, world)
    config.num_attention_heads, config.o_groups = plan.heads[1], plan.groups[1]
    if plan.experts[0]:
        config.dspark_n_routed_experts = plan.experts[1]
    remember(config, plan)
    evidence.write(f"DSV41 TP pad installed (tp={world})")
    for line in plan.lines():
        evidence.write(line)
    return plan


def _install(module: ModuleType, name: str, padded: Callable[[Iterable[Any], Plan], Iterable[Any]]) -> None:
    model = binding.symbol(module, name)
    binding.symbol(module, "get_parallel")
    binding.require_parameters(model.__init__, "config")
    binding.require_parameters(model.load_weights, "weights")
    binding.replace(module, f"{name}.__init__", NAME, lambda original: _construct(module, original))
    binding.replace(module, f"{name}.load_weights", NAME, lambda original: _load(padded, original))


def _construct(module: ModuleType, original: Callable[..., None]) -> Callable[..., None]:
    def construct(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        plan = pad_config(config, int(module.get_parallel().attn_tp_size))
        original(self, config, *args, **kwargs)
        object.__setattr__(self, PLAN, plan)
        rank = int(module.get_parallel().attn_tp_rank)
        evidence.report(
            NAME,
            "armed",
            model=type(self).__name__,
            heads=plan.heads[1],
            groups=plan.groups[1],
            experts=plan.experts[1],
            padding_only=int(plan.only_padding(rank)),
        )

    return construct


def _load(padded: Callable[[Iterable[Any], Plan], Iterable[Any]], original: Callable[..., Any]) -> Callable[..., Any]:
    def load_weights(self: Any, weights: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        plan: Plan = getattr(self, PLAN)
        return original(self, padded(weights, plan) if plan.changed else weights, *args, **kwargs)

    return load_weights


def _vocabulary(module: ModuleType, original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(inspect.unwrap(original))

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        chosen = bound.arguments
        parallel = module.get_parallel()
        world = 1
        if chosen["enable_tp"]:
            world = int(parallel.attn_tp_size if chosen["use_attn_tp_group"] else parallel.tp_size)
        size = chosen.get("org_num_embeddings") or chosen["num_embeddings"]
        step = vocabulary_padding(int(size), int(chosen["padding_size"]), world)
        original(self, *args, **{**kwargs, "padding_size": step})

    return construct

"""Tensors of the checkpoint, padded on their way to the engine's loaders: zeros, scales of 1, a bias that excludes.

Padded before they are cut by rank, so that each loader finds its shard whole, and before anything is multiplied, so
that a padded weight is exactly zero afterwards. Nothing is left unwritten: never-written scales made the MXFP8 path
refuse the shard (field 3.9, fork 2.2).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from trispark_adapters.pad_plan import (
    NEVER,
    Plan,
    Target,
    attention_target,
    copies_of,
    gate_target,
    router_of,
    stage_of,
)
from trispark_hooks.registry import HookError

ONE_E8M0: Final = 127
Named = tuple[str, Any]
BYTES: Final = (torch.uint8, torch.int8)


def pad(tensor: Any, target: Target, name: str) -> Any:
    """`tensor` with `target.after / target.before` times its length along `target.dim`, its own part first."""
    length = tensor.shape[target.dim] if target.dim < tensor.dim() else -1
    if length < 1 or length % target.before:
        raise HookError(
            f"TS-ADAPTER-PAD-SHAPE: a tensor of the checkpoint has another shape [where: {name}] expected: dimension "
            f"{target.dim} a multiple of {target.before}; observed: {tuple(tensor.shape)}; remedy: use the "
            "checkpoint of docs/sparks.md"
        )
    shape = list(tensor.shape)
    shape[target.dim] = length // target.before * target.after
    padded = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    fill(padded, target.fill)
    padded.narrow(target.dim, 0, length).copy_(tensor)
    return padded


def fill(tensor: Any, kind: str) -> None:
    """Zero, one or never, in any type that the checkpoint has; a byte of scales is an exponent."""
    if kind == "zero":
        tensor.view(torch.uint8).zero_()
    elif kind == "never":
        tensor.fill_(NEVER)
    elif tensor.dtype in BYTES or tensor.dtype == torch.float8_e8m0fnu:
        tensor.view(torch.uint8).fill_(ONE_E8M0)
    else:
        tensor.fill_(1)


def target_weights(weights: Iterable[Named], plan: Plan) -> Iterator[Named]:
    """Weights of the model itself. HookError when there was nothing to pad, or not the same in all layers."""
    seen: Counter[str] = Counter()
    for name, tensor in weights:
        # The stream also holds the draft's layers, which are loaded apart.
        target = attention_target(plan, name) if not name.startswith("mtp.") else None
        if target is not None:
            seen[target.kind] += 1
            tensor = pad(tensor, target, name)
        yield name, tensor
    _check(seen, plan)


def draft_weights(weights: Iterable[Named], plan: Plan) -> Iterator[Named]:
    """Weights of the draft: attention, the router, and experts that are never chosen. HookError when a stage's router
    could choose one, or its experts were not seen."""
    seen: Counter[str] = Counter()
    routers: dict[str, set[str]] = {"weight": set(), "choice": set(), "experts": set()}
    for name, tensor in weights:
        target = attention_target(plan, name) if name.startswith("mtp.") else None
        if target is not None:
            seen[target.kind] += 1
            tensor = pad(tensor, target, name)
        elif (gate := gate_target(plan, name)) is not None:
            tensor = pad(tensor, gate, name)
        if (router := router_of(name)) is not None:
            routers[router[1]].add(router[0])
        yield name, tensor
        for copy in copies_of(plan, name):
            made = torch.empty_like(tensor)
            fill(made, "one" if name.endswith(("scale", "weight_scale_inv")) else "zero")
            routers["experts"].add(stage_of(name))
            yield copy, made
    _check(seen, plan)
    if plan.experts[0] != plan.experts[1]:
        weight, choice, experts = routers.values()
        if not weight or not weight == choice == experts:
            found = f"routers of {sorted(weight)}, biases of {sorted(choice)}, experts of {sorted(experts)}"
            raise _missing("a router, its selection bias and its experts of each draft stage", found)


def _check(seen: Counter[str], plan: Plan) -> None:
    if plan.heads[0] == plan.heads[1]:
        return
    weights = {seen[f"{part}.weight"] for part in ("wq_b", "wo_a", "wo_b")} | {seen["attn_sink"]}
    if len(weights) != 1 or 0 in weights:
        raise _missing("wq_b, wo_a, wo_b and attn_sink of each layer", dict(seen).__repr__())


def _missing(expected: str, observed: str) -> HookError:
    return HookError(
        f"TS-ADAPTER-PAD-NAMES: tensors that are to be padded were not seen [where: checkpoint] expected: {expected}; "
        f"observed: {observed}; remedy: use the checkpoint of docs/sparks.md, or adapters for this one"
    )

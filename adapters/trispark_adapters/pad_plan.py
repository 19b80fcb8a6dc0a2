"""How far heads, output groups, vocabulary and draft experts are padded for a number of ranks. No engine needed.

Heads are padded to a local number that the attention kernels take, groups along with them, so that a group keeps its
heads; with 64 heads, 8 groups and three ranks that is 96 and 12, and the last rank's shard is padding alone. Facts:
field 3.9, 3.10, fork 2.2.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from trispark_hooks.registry import HookError

LOCAL_HEADS: Final = (16, 32, 64, 128)
"""Numbers of query heads a rank that the sparse attention kernels of this GPU take."""
ATTRIBUTE: Final = "trispark_padding"
"""Of a configuration that was padded: its plan, in plain types, since configurations are printed and sent as JSON."""
NEVER: Final = -1e30
"""Selection bias of an expert that must not be chosen; finite in bf16 as well."""


@dataclass(frozen=True)
class Plan:
    """Numbers before and after; an equal pair is not padded. `experts` are the draft's, 0 where it has no own."""

    world: int
    heads: tuple[int, int]
    groups: tuple[int, int]
    experts: tuple[int, int]

    @property
    def changed(self) -> bool:
        """Whether anything is padded."""
        return any(before != after for before, after in (self.heads, self.groups, self.experts))

    @property
    def local_heads(self) -> int:
        return self.heads[1] // self.world

    def only_padding(self, rank: int) -> bool:
        """Whether the attention shard of `rank` holds no real head."""
        return rank * self.local_heads >= self.heads[0]

    def lines(self) -> list[str]:
        """What the log says of it."""
        said = []
        if self.heads[0] != self.heads[1]:
            said.append(
                f"DSV41 TP pad: num_attention_heads {self.heads[0]}→{self.heads[1]}, o_groups {self.groups[0]}→"
                f"{self.groups[1]} (tp={self.world}, local_heads={self.local_heads})"
            )
        if self.experts[0] != self.experts[1]:
            said.append(f"DSV41 TP pad: dspark_n_routed_experts {self.experts[0]}→{self.experts[1]} (tp={self.world})")
        return said


def plan_of(world: int, heads: int, groups: int, experts: int, routed: int) -> Plan:
    """`routed` are the target's experts, which are never padded. HookError TS-ADAPTER-PAD where no padding fits."""
    if min(world, heads, groups) < 1 or heads % groups:
        raise _no("groups of equal size", f"{heads} heads in {groups} groups, {world} ranks")
    each = heads // groups
    local = next((n for n in LOCAL_HEADS if n * world >= heads and n % each == 0), None)
    if world == 1:
        local = heads
    if local is None:
        raise _no(f"one of {LOCAL_HEADS} heads a rank, in groups of {each}", f"{heads} heads, {world} ranks")
    if routed % world:
        raise _no(f"a number of routed experts that {world} divides", str(routed))
    return Plan(world, (heads, local * world), (groups, local * world // each), (experts, -(-experts // world) * world))


def _no(expected: str, observed: str) -> HookError:
    return HookError(
        f"TS-ADAPTER-PAD: the model cannot be padded to this number of ranks [where: model configuration] expected: "
        f"{expected}; observed: {observed}; remedy: use another number of ranks"
    )


def vocabulary_padding(size: int, step: int, world: int) -> int:
    """Step to which a vocabulary of `size` is padded, so that the ranks divide it: `step`, or as often as there are
    ranks."""
    padded = -(-size // step) * step
    return step if padded % world == 0 else step * world


@dataclass(frozen=True)
class Target:
    """A tensor that is longer in the engine than in the checkpoint: along `dim`, `before` to `after` parts."""

    kind: str
    dim: int
    before: int
    after: int
    fill: str
    """zero; one, for scales; never, for the selection bias of an expert."""


_ATTENTION: Final = re.compile(
    r"(?:^|\.)(?:attn|self_attn)\.(?:(?P<part>wq_b|wo_a|wo_b)\.(?P<kind>weight|scale|weight_scale_inv)|(?P<sink>attn_sink))$"
)
_GATE: Final = re.compile(r"^mtp\.\d+\.(?:ffn|mlp)\.gate\.(?P<kind>weight|bias|bias_vl)$")
_ROUTER: Final = re.compile(r"^mtp\.\d+\.(?:ffn|mlp)\.gate\.(?P<kind>weight|bias|tid2eid)$")
_EXPERT: Final = re.compile(r"^(?P<head>mtp\.\d+\.(?:ffn|mlp)\.experts\.)(?P<number>\d+)(?P<tail>\..+)$")


def attention_target(plan: Plan, name: str) -> Target | None:
    """For `name` of the checkpoint, None where its tensor stays as it is. The indexer's own wq_b stays."""
    found = _ATTENTION.search(name)
    if found is None or plan.heads[0] == plan.heads[1]:
        return None
    if found["sink"]:
        return Target("attn_sink", 0, *plan.heads, "zero")
    fill = "zero" if found["kind"] == "weight" else "one"
    kind = f"{found['part']}.{'weight' if fill == 'zero' else 'scale'}"
    # wq_b makes heads, wo_a makes groups, wo_b takes groups.
    parts = plan.heads if found["part"] == "wq_b" else plan.groups
    return Target(kind, 1 if found["part"] == "wo_b" else 0, *parts, fill)


def gate_target(plan: Plan, name: str) -> Target | None:
    """For the draft's router."""
    found = _GATE.search(name)
    if found is None or plan.experts[0] == plan.experts[1]:
        return None
    return Target(f"gate.{found['kind']}", 0, *plan.experts, "zero" if found["kind"] == "weight" else "never")


def router_of(name: str) -> tuple[str, str] | None:
    """(stage, "weight" or "choice") of a tensor of a draft's router. What keeps padded experts from being chosen is its
    selection bias, or a table that names the experts of each token."""
    found = _ROUTER.search(name)
    return None if found is None else (stage_of(name), "weight" if found["kind"] == "weight" else "choice")


def stage_of(name: str) -> str:
    """ "mtp.N" of a tensor of the draft."""
    return ".".join(name.split(".")[:2])


def copies_of(plan: Plan, name: str) -> list[str]:
    """Names of the padded draft experts' tensors that are made after the likeness of the last real expert's `name`."""
    found = _EXPERT.search(name)
    if found is None or int(found["number"]) != plan.experts[0] - 1:
        return []
    return [f"{found['head']}{number}{found['tail']}" for number in range(*plan.experts)]


def plan_of_config(config: Any, world: int) -> Plan:
    """From the engine's configuration of the model."""
    return plan_of(
        world,
        int(config.num_attention_heads),
        int(config.o_groups),
        int(getattr(config, "dspark_n_routed_experts", 0) or 0),
        int(config.n_routed_experts),
    )


def remember(config: Any, plan: Plan) -> None:
    """Leave `plan` at the configuration, where copies of it have it, too."""
    setattr(config, ATTRIBUTE, asdict(plan))


def remembered(config: Any) -> Plan | None:
    """The plan by which `config` was padded."""
    known: dict[str, Any] | None = getattr(config, ATTRIBUTE, None)
    if known is None:
        return None
    heads, groups, experts = (
        (int(pair[0]), int(pair[1])) for pair in (known["heads"], known["groups"], known["experts"])
    )
    return Plan(int(known["world"]), heads, groups, experts)

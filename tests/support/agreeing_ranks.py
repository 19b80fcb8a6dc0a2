"""One rank of three: live lengths and joint acceptance over gloo; prints what this rank decided, by fault, as JSON.

    agreeing_ranks.py RANK STORE

STORE is a file for the rendezvous. Fault "generator" gives rank 1 another state of its generator, "alone" leaves the
broadcast out; "none" is what is served.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from trispark_adapters import block_verify
from trispark_adapters.verify_cap import VerifyCap
from trispark_adapters.verify_cap_policy import Policy

WORLD, BS, GAMMA, VOCAB = 3, 4, 5, 50


class Group:
    """What the cap asks of the engine's TP group."""

    def broadcast(self, values: Any, src: int) -> None:
        dist.broadcast(values, src=src)


class Alone:
    def broadcast(self, values: Any, src: int) -> None: ...


def softmax(*, logits: Any, temperatures: Any, rows_per_request: int) -> Any:
    return (logits / temperatures.repeat_interleave(rows_per_request, 0)).softmax(1)


def decisions(rank: int, fault: str) -> list[Any]:
    engine: Any = SimpleNamespace(SoftmaxTemp=SimpleNamespace(execute=softmax))
    cap = VerifyCap(Policy("conf:0.3", thresholds=(0.3,)), {}, Alone() if fault == "alone" else Group())
    own = torch.Generator().manual_seed(100 + rank)  # confidences that differ in more than rounding
    shared = torch.Generator().manual_seed(7)
    torch.manual_seed(1 if fault == "generator" and rank == 1 else 0)
    decided = []
    for step in range(20):
        bs = 1 + step % BS
        cap.offer(None if step == 7 and rank == 2 else torch.rand((bs, GAMMA), generator=own))
        cap.before_verify(bs, GAMMA + 1, "cpu")
        logits = torch.rand((bs * (GAMMA + 1), VOCAB), generator=shared) * 3
        draft = (logits.view(bs, GAMMA + 1, VOCAB)[:, :GAMMA] * 0.9).softmax(2)
        tokens = torch.multinomial(draft.reshape(-1, VOCAB), 1, generator=shared).view(bs, GAMMA)
        info = SimpleNamespace(temperatures=torch.ones((bs, 1)), need_top_k_sampling=False, need_top_p_sampling=False)
        kept, token, _ = block_verify.accept(
            engine,
            candidates=torch.cat([torch.zeros((bs, 1), dtype=torch.int64), tokens], 1),
            target_logits=logits,
            draft_probs=draft,
            sampling_info=info,
            draft_input=None,
            gamma=GAMMA,
            verify_num_draft_tokens=GAMMA + 1,
            cutoff_verify_lens=cap.cut(bs),
        )
        decided.append([cap.cut(bs).tolist(), kept.tolist(), token.tolist()])
    return decided


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    found = {fault: decisions(rank, fault) for fault in ("none", "alone", "generator")}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

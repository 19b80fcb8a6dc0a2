"""Draft logits from the 8-bit head, on the engine's own DeepseekV4ForCausalLMDSpark methods."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from twin_reference import CpuProducts, kernel_operands

from trispark_adapters.draft_head_fp8 import MAX_ROWS, MODEL, TWIN, Adapter, install
from trispark_adapters.twin_device import TwinError
from trispark_hooks.evidence import Counters

COLUMNS, VOCABULARY = 5120, 96
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The release's draft module; what the adapter replaces is put back."""
    found = importlib.import_module("sglang.srt.models.deepseek_v4_dspark")
    model = getattr(found, MODEL)
    for name in ("attach_shared_modules", "_logits_from_x_post_hc"):
        monkeypatch.setattr(model, name, model.__dict__[name])
    monkeypatch.setattr(found, "gather_and_crop_vocab", lambda local, head: torch.cat([local, local], dim=-1))
    return found


class Head(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.quant_method = None
        self.org_vocab_size = 2 * VOCABULARY


def head_of(seed: int = 0) -> Head:
    source = torch.Generator().manual_seed(seed)
    return Head((torch.randn((VOCABULARY, COLUMNS), generator=source) * 0.02).to(torch.bfloat16))


class Draft:
    """The attributes that the two methods read, and the methods of the release."""

    def __init__(self, module: ModuleType, shard: bool = True, fp32: bool = False) -> None:
        self._class = getattr(module, MODEL)
        self.uses_own_vocab_modules = False
        self.markov_head = SimpleNamespace(configure_tp_shard=lambda **given: None)
        self.stages = [SimpleNamespace(norm=lambda x: x * 2)]
        self._opt_markov_w2_tp_shard, self._use_fp32_lm_head = shard, fp32
        self.lm_head: Any = None

    def attach_shared_modules(self, **given: Any) -> None:
        self._class.attach_shared_modules(self, **given)

    def logits(self, x: Any) -> Any:
        return self._class._logits_from_x_post_hc(self, x)


class Hooked:
    def __init__(self, module: ModuleType, kernels: Any = CpuProducts, **draft: bool) -> None:
        self.lines: list[str] = []
        self.count = Counters("draft_head_fp8", "twin", "stock")
        install(module, Adapter(kernels, self.count, self.lines.append))
        self.draft = Draft(module, **draft)

    def attach(self, head: Any) -> Hooked:
        self.draft.attach_shared_modules(embed_tokens=None, lm_head=head)
        return self

    def counted(self) -> dict[str, int]:
        return {name: count for name, count in self.count.read().items() if count}


def no_kernels() -> Any:
    raise TwinError("TS-ADAPTER-KERNEL: no GPU")


def hidden(rows: int) -> Any:
    return torch.randn((rows, COLUMNS), generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)


def wide_logits(x: Any, weight: Any) -> Any:
    return (x * 2).double() @ weight.double().T


@pytest.mark.parametrize("rows", [1, 5, 20, MAX_ROWS])
@pytest.mark.parametrize("shard", [True, False])
def test_logits_come_from_the_copy(module: ModuleType, rows: int, shard: bool) -> None:
    hooked = Hooked(module, shard=shard).attach(head := head_of())
    x = hidden(rows)
    got = hooked.draft.logits(x)
    assert hooked.counted() == {"twin": 1}
    assert got.dtype == torch.bfloat16
    assert got.shape == (rows, VOCABULARY if shard else 2 * VOCABULARY)
    local = got[:, :VOCABULARY]
    copied = wide_logits(x, kernel_operands(getattr(hooked.draft, TWIN)[0]))
    assert float((local.double() - copied).norm() / copied.norm()) < 3e-3
    want = wide_logits(x, head.weight)
    assert 0 < float((local.double() - want).norm() / want.norm()) < 0.05
    assert torch.equal(head.weight, head_of().weight)


def stock_logits(hooked: Hooked, x: Any) -> bool:
    want = wide_logits(x, hooked.draft.lm_head.weight)
    return float((hooked.draft.logits(x).double() - want).norm() / want.norm()) < 3e-3


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_other_row_counts_are_the_engines_own(module: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(module, "project_through_lm_head", lambda x, head: x @ head.weight.T)
    hooked = Hooked(module).attach(head_of())
    assert hooked.draft.logits(hidden(rows)).shape == (rows, VOCABULARY)
    assert hooked.counted() == {"stock": 1}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("float32 head", "no bf16 matrix"),
        ("packed head", "no bf16 matrix"),
        ("float32 projection", "projects in float32"),
        ("other width", "no kernel for a head of (96, 64)"),
        ("not finite", "or a value too large"),
        ("no kernels", "TS-ADAPTER-KERNEL"),
    ],
)
def test_a_head_that_has_no_copy_is_said(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    monkeypatch.setattr(module, "project_through_lm_head", lambda x, head: x.to(head.weight.dtype) @ head.weight.T)
    hooked = Hooked(module, no_kernels if kind == "no kernels" else CpuProducts, fp32=kind == "float32 projection")
    head = head_of()
    if kind == "float32 head":
        head.weight = torch.nn.Parameter(head.weight.float(), requires_grad=False)
    elif kind == "packed head":
        head.weight = torch.nn.Parameter(head.weight.view(torch.int16), requires_grad=False)
    elif kind == "other width":
        head.weight = torch.nn.Parameter(head.weight[:, :64], requires_grad=False)
    elif kind == "not finite":
        head.weight.data[5, 6] = float("inf")
    hooked.attach(head)
    assert any(reason in line and "stock path" in line for line in hooked.lines)
    assert any("state=disabled" in line for line in hooked.lines)
    assert not any("fp8 twin of the draft LM head" in line for line in hooked.lines)
    if kind in ("float32 projection", "no kernels"):
        assert stock_logits(hooked, hidden(5))
        assert hooked.counted() == {"stock": 1}


def test_a_head_that_was_exchanged_is_read_itself(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "project_through_lm_head", lambda x, head: x @ head.weight.T)
    hooked = Hooked(module).attach(head_of(0))
    hooked.draft.lm_head = head_of(1)
    assert stock_logits(hooked, hidden(5))
    hooked.attach(head_of(2))
    hooked.draft.logits(hidden(5))
    assert hooked.counted() == {"stock": 1, "twin": 1}


def test_the_line_of_the_evidence(module: ModuleType) -> None:
    import re

    hooked = Hooked(module).attach(head_of())
    evidence = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text(encoding="utf-8"))["evidence"]
    pattern = evidence["draft_head.twin"]["pattern"].replace("43136", str(VOCABULARY))
    assert any(re.search(pattern, line) for line in hooked.lines)
    assert any("state=active" in line and "twin_mib=" in line for line in hooked.lines)
    used = evidence["draft_head.used"]["pattern"]
    assert not any(re.search(used, line) for line in hooked.lines)  # built is not used
    for _ in range(2):
        hooked.draft.logits(hidden(5))
    assert sum(bool(re.search(used, line)) for line in hooked.lines) == 1


def test_the_engines_own_eight_bit_head_comes_first(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = sys.modules["sglang.srt.models.dspark"]
    monkeypatch.setattr(own, "_DSPARK_FP8_LM_HEAD", True, raising=False)
    before = getattr(module, MODEL)._logits_from_x_post_hc
    install(module, Adapter(CpuProducts, Counters("draft_head_fp8", "twin", "stock")))
    assert getattr(module, MODEL)._logits_from_x_post_hc is before
    assert "the engine's own 8-bit head is on" in capfd.readouterr().out

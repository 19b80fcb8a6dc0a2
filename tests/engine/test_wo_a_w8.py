"""The dispatch of the output projection with twins in front of it, on the engine's own function and classes."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from twin_reference import CpuProducts

from trispark_adapters import padded_attention_skip, twin_format, wo_a_w8
from trispark_adapters.twin_device import TwinError
from trispark_adapters.wo_a_w8 import PATHS, Adapter, Modes, install_draft, install_target
from trispark_hooks.evidence import Counters
from trispark_hooks.switches import HookError

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, RANK = 4096, 32
MODEL = "sglang.srt.models.deepseek_v4"
DRAFT_MODEL = "sglang.srt.models.deepseek_v4_dspark"
EVIDENCE: dict[str, Any] = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text(encoding="utf-8"))["evidence"]


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.int16)


def weight_of(groups: int, seed: int) -> Any:
    """bf16 [groups * RANK, COLUMNS] that has an exact twin."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (groups * RANK, COLUMNS), generator=source, dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, codes - 1, codes)
    exponents = torch.randint(112, 120, (groups * RANK // 32, COLUMNS // 32), generator=source, dtype=torch.uint8)
    return twin_format.dequantise(codes, exponents)


def activations(rows: int, groups: int, seed: int = 0) -> Any:
    source = torch.Generator().manual_seed(seed)
    return torch.randn((rows, groups, COLUMNS), generator=source).to(torch.bfloat16)


class Attention(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.wo_a = torch.nn.Module()
        self.wo_a.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.o_lora_rank = RANK


class Model(torch.nn.Module):
    """What the adapter sees of a model; its load fills the weights in place, as the engine's does."""

    def __init__(self, weights: list[Any]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(torch.zeros_like(weight)) for weight in weights)
        self.forwards: list[Any] = []

    def load_weights(self, weights: list[Any], is_nextn: bool = False) -> str:
        for layer, weight in zip(self.layers, weights, strict=True):
            layer.wo_a.weight.data.copy_(weight)
        return "loaded"

    def forward(self, input_ids: Any, positions: Any, forward_batch: Any, then: Any = None) -> Any:
        return then() if then is not None else None


class Engine:
    """A module with the engine's own dispatch and the small model, hooked."""

    def __init__(self, modes: Modes, original: Any, groups: int = 4, layers: int = 1, draft: bool = False) -> None:
        self.calls: list[dict[str, Any]] = []
        names = tuple(inspect.signature(original).parameters)

        def seen(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(dict(zip(names, args, strict=False)) | kwargs)
            return original(*args, **kwargs)

        seen.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        self.lines: list[str] = []
        self.kernels = CpuProducts()
        self.count = Counters("wo_a_w8", *PATHS)
        self.capturing = False
        self.adapter = Adapter(modes, lambda: self.kernels, self.count, self.lines.append, lambda: self.capturing)
        self.module = ModuleType("engine")
        self.model_class = type("Model", (Model,), {"load_weights": Model.load_weights, "forward": Model.forward})
        name = "DeepseekV4ForCausalLMDSpark" if draft else "DeepseekV4ForCausalLM"
        setattr(self.module, name, self.model_class)
        self.module._apply_wo_a_bf16_matmul = seen  # type: ignore[attr-defined]
        (install_draft if draft else install_target)(self.module, self.adapter)
        self.weights = [weight_of(groups, seed) for seed in range(layers)]
        self.model = self.model_class(self.weights)

    def load(self, **kwargs: Any) -> Engine:
        assert self.model.load_weights(self.weights, **kwargs) == "loaded"
        return self

    def view(self, layer: int = 0) -> Any:
        weight = self.model.layers[layer].wo_a.weight
        return weight.view(weight.shape[0] // RANK, RANK, -1)

    def matmul(self, *args: Any, **kwargs: Any) -> Any:
        return self.module._apply_wo_a_bf16_matmul(*args, **kwargs)  # type: ignore[attr-defined]

    def counted(self) -> dict[str, int]:
        return {name: count for name, count in self.count.read().items() if count}


@pytest.fixture(scope="module")
def stock() -> Any:
    """The release's own _apply_wo_a_bf16_matmul."""
    return inspect.unwrap(importlib.import_module(MODEL)._apply_wo_a_bf16_matmul)


def near(got: Any, x: Any, weight: Any) -> bool:
    want = torch.einsum("tgd,grd->tgr", x.double(), weight.view(x.shape[1], RANK, COLUMNS).double())
    return float((got.double() - want).norm() / want.norm()) < 3e-3


def few(**true: bool) -> dict[str, bool]:
    return {"is_decode": False, **true}


DISPATCH = [
    # rows, groups, modes, keywords, path
    (2, 4, "", few(), "small"),
    (8, 4, "", few(is_target_verify=True), "small"),
    (8, 4, "", few(is_prefill=True), "stock"),
    (8, 4, "drop", few(is_prefill=True), "widened"),
    (1, 4, "drop", few(is_prefill=True), "widened"),
    (6, 4, "", few(is_target_verify=True, fuse_mxfp8_quant=True, fast_path=True), "small"),
    (6, 2, "", few(is_target_verify=True), "small"),
    (6, 2, "", few(is_target_verify=True, fuse_mxfp8_quant=True), "stock"),
    (1, 4, "", few(is_decode=True), "stock"),
    (1, 4, "drop", few(is_decode=True), "single"),
    (9, 4, "", few(is_target_verify=True), "stock"),
    (9, 4, "mid", few(is_target_verify=True), "mid"),
    (192, 4, "mid", few(is_decode=True), "mid"),
    (193, 4, "mid", few(is_decode=True), "stock"),
    (24, 4, "mid", few(), "stock"),
    (24, 4, "mid", few(is_prefill=True), "stock"),
    (24, 4, "mid drop", few(is_prefill=True), "widened"),
    (24, 4, "drop", few(is_target_verify=True), "widened"),
    (24, 4, "mid drop", few(is_target_verify=True), "mid"),
    (300, 4, "mid drop", few(is_target_verify=True), "widened"),
    (6, 2, "drop", few(is_target_verify=True, fuse_mxfp8_quant=True), "widened"),
]


@pytest.mark.parametrize(("rows", "groups", "modes", "keywords", "path"), DISPATCH)
def test_which_path_a_call_takes(
    stock: Any, rows: int, groups: int, modes: str, keywords: dict[str, bool], path: str
) -> None:
    engine = Engine(Modes(mid="mid" in modes, drop="drop" in modes), stock, groups).load()
    x = activations(rows, groups)
    got = engine.matmul(x, engine.view(), **keywords)
    assert engine.counted() == {path: 1}
    assert got.shape == (rows, groups, RANK)
    assert near(got, x, engine.weights[0])
    assert len(engine.calls) == (path in ("stock", "widened"))
    if engine.calls:  # the engine's own function got what the caller gave, and the wide weight's bits
        assert {name: engine.calls[0][name] for name in keywords} == keywords
        assert torch.equal(bits(engine.calls[0]["wo_a"]).view(-1), bits(engine.weights[0]).view(-1))
        assert engine.calls[0]["wo_a"].shape == (groups, RANK, COLUMNS)


@pytest.mark.parametrize("keyword", ["emit_fp8", "fp8_grid"])
def test_a_result_in_eight_bits_is_the_engines_own(stock: Any, keyword: str) -> None:
    if keyword not in inspect.signature(stock).parameters:
        pytest.skip(f"this release does not have {keyword}")
    engine = Engine(Modes(), stock).load()
    engine.matmul(activations(6, 4), engine.view(), is_decode=False, is_target_verify=True, **{keyword: True})
    assert engine.counted() == {"stock": 1}


@pytest.mark.parametrize("where", ["positional", "mixed", "keywords"])
@pytest.mark.parametrize("path", ["mid", "widened"])
def test_arguments_by_place_and_by_name(stock: Any, where: str, path: str) -> None:
    engine = Engine(Modes(mid=True, drop=True), stock).load()
    x, verify = activations(12, 4), path == "mid"
    if where == "positional":
        got = engine.matmul(x, engine.view(), False, verify)
    elif where == "mixed":
        got = engine.matmul(x, engine.view(), False, is_target_verify=verify)
    else:
        got = engine.matmul(o=x, wo_a=engine.view(), is_decode=False, is_target_verify=verify)
    assert engine.counted() == {path: 1}
    assert near(got, x, engine.weights[0])


def test_arguments_of_a_later_build_reach_the_engine() -> None:
    def later(o: Any, wo_a: Any, is_decode: bool, *, other: int, **rest: Any) -> Any:
        return torch.einsum("tgd,grd->tgr", o, wo_a)

    engine = Engine(Modes(), later).load()
    engine.matmul(activations(1, 4), engine.view(), True, other=3, new="x")
    assert (engine.calls[0]["other"], engine.calls[0]["new"]) == (3, "x")
    engine.matmul(activations(4, 4), engine.view(), True, other=3, new="x")
    assert engine.counted() == {"stock": 1, "small": 1}


def test_an_early_build_of_three_arguments() -> None:
    def early(o: Any, wo_a: Any, is_decode: bool) -> Any:
        return torch.einsum("tgd,grd->tgr", o, wo_a)

    engine = Engine(Modes(mid=True), early).load()
    engine.matmul(activations(12, 4), engine.view(), True)
    engine.matmul(activations(12, 4), engine.view(), False)
    assert engine.counted() == {"mid": 1, "stock": 1}


class Mode:
    def __init__(self, *true: str) -> None:
        for name in ("is_decode", "is_target_verify", "is_draft_extend_v2"):
            setattr(self, name, lambda name=name: name in true)


@pytest.mark.parametrize(
    ("true", "path"),
    [
        (("is_decode",), "mid"),
        (("is_target_verify",), "mid"),
        (("is_draft_extend_v2",), "mid"),
        ((), "stock"),
    ],
)
def test_the_forward_on_the_stack_says_what_a_build_of_three_arguments_does_not(
    true: tuple[str, ...], path: str
) -> None:
    def early(o: Any, wo_a: Any, is_decode: bool) -> Any:
        return torch.einsum("tgd,grd->tgr", o, wo_a)

    engine = Engine(Modes(mid=True), early).load()
    batch = SimpleNamespace(forward_mode=Mode(*true))

    def inside() -> Any:
        return engine.matmul(activations(12, 4), engine.view(), False)

    engine.model.forward(None, None, batch, then=inside)
    assert engine.counted() == {path: 1}
    inside()  # no forward any more
    assert engine.counted().get("stock", 0) == (1 if path == "mid" else 2)


@pytest.mark.parametrize(
    ("true", "counted"), [((), {"stock": 1}), (("is_target_verify",), {"small": 1}), (("is_decode",), {"small": 1})]
)
def test_a_short_prefill_of_a_build_of_three_arguments_is_the_engines_own(
    true: tuple[str, ...], counted: dict[str, int]
) -> None:
    def early(o: Any, wo_a: Any, is_decode: bool) -> Any:
        return torch.einsum("tgd,grd->tgr", o, wo_a)

    engine = Engine(Modes(mid=True), early).load()
    batch = SimpleNamespace(forward_mode=Mode(*true))
    engine.model.forward(
        None, None, forward_batch=batch, then=lambda: engine.matmul(activations(6, 4), engine.view(), False)
    )
    assert engine.counted() == counted


SETTINGS = {"DSPARK_BLOCK_SIZE": 5}


def shown(identity: str, lines: list[str]) -> bool:
    pattern = EVIDENCE[identity]["pattern"].replace("<DSPARK_BLOCK_SIZE+1>", str(SETTINGS["DSPARK_BLOCK_SIZE"] + 1))
    return any(re.search(pattern, line) for line in lines)


def test_only_what_a_graph_of_the_target_holds_is_said_to_be_captured(stock: Any) -> None:
    engine = Engine(Modes(mid=True), stock).load()
    verify = SimpleNamespace(forward_mode=Mode("is_target_verify"))

    def step(rows: int, inside: bool = True) -> None:
        def call() -> Any:
            return engine.matmul(activations(rows, 4), engine.view(), False, is_target_verify=True)

        engine.model.forward(None, None, forward_batch=verify, then=call) if inside else call()

    step(6)  # a warm-up
    step(12)
    engine.capturing = True
    step(6, inside=False)  # the draft
    assert not any(shown(identity, engine.lines) for identity in ("wo_a.captured", "wo_a_mid.captured"))
    step(4)
    assert not shown("wo_a.captured", engine.lines)  # not the rows of one request
    step(6)
    assert shown("wo_a.captured", engine.lines)
    assert not shown("wo_a_mid.captured", engine.lines)
    step(12)
    assert shown("wo_a_mid.captured", engine.lines)
    step(300)  # the engine's own
    for _ in range(2):  # once for each number of rows, though each layer calls
        step(6)
    captured = [line for line in engine.lines if "captured" in line]
    assert [line.rpartition("=")[2] for line in captured] == ["4", "6", "12"]
    assert shown("wo_a.present", captured[:1])
    assert shown("wo_a_mid.present", captured[2:])
    assert not shown("wo_a_mid.present", captured[:2])


def test_the_stack_of_forwards_is_left_also_by_an_error(stock: Any) -> None:
    engine = Engine(Modes(mid=True), stock).load()

    def broken() -> Any:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        engine.model.forward(None, None, forward_batch=SimpleNamespace(forward_mode=Mode("is_decode")), then=broken)
    assert not engine.adapter.forwards.of_few_rows()


@pytest.mark.parametrize("kind", ["apart", "unaligned", "float32"])
def test_activations_that_lie_otherwise(stock: Any, kind: str) -> None:
    engine = Engine(Modes(), stock).load()
    wide = torch.randn((6, 6, 2 * COLUMNS), generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    x = wide[:, 1:5, 64 : 64 + COLUMNS] if kind != "unaligned" else wide[:, 1:5, 63 : 63 + COLUMNS]
    if kind == "float32":
        with pytest.raises(RuntimeError):  # the engine's own einsum refuses, as without the adapter
            engine.matmul(x.float(), engine.view(), False)
        assert engine.counted() == {"stock": 1}
        return
    got = engine.matmul(x, engine.view(), False)
    assert engine.counted() == ({"small": 1} if kind == "apart" else {"stock": 1})
    assert near(got, x, engine.weights[0])


def test_other_weights_are_not_touched(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock).load()
    other = weight_of(4, 9).view(4, RANK, COLUMNS)
    x = activations(6, 4)
    got = engine.matmul(x, other, False)
    assert torch.equal(bits(got), bits(stock(x, other, False)))
    assert engine.counted() == {}


def test_before_the_load_the_engine_is_alone(stock: Any) -> None:
    engine = Engine(Modes(), stock)
    x = activations(6, 4)
    assert torch.equal(bits(engine.matmul(x, engine.view(), False)), bits(stock(x, engine.view(), False)))


def holds(identity: str, lines: list[str]) -> bool:
    return any(re.search(EVIDENCE[identity]["pattern"], line) for line in lines)


def test_release_of_the_wide_copies(stock: Any) -> None:
    engine = Engine(Modes(mid=True, drop=True), stock, layers=3).load()
    parameters = [layer.wo_a.weight for layer in engine.model.layers]
    for parameter, weight in zip(parameters, engine.weights, strict=True):
        assert parameter.shape == weight.shape
        assert parameter.stride() == (0, 0)
        assert parameter.untyped_storage().nbytes() == 2
        assert bool(parameter.isnan().all())
    assert len({parameter.data_ptr() for parameter in parameters}) == 3
    assert all(holds(identity, engine.lines) for identity in ("wo_a.twins", "wo_a_mid.armed", "wo_a_drop.released"))
    assert not any(holds(identity, engine.lines) for identity in ("wo_a.left", "wo_a_drop.kept"))
    for layer in range(3):
        x = activations(24, 4, layer)
        assert near(engine.matmul(x, engine.view(layer), False), x, engine.weights[layer])


def test_a_call_on_a_released_weight_gets_a_buffer_of_its_own(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock).load()
    for seed in range(2):
        engine.matmul(activations(24, 4, seed), engine.view(), False)
    assert len({call["wo_a"].data_ptr() for call in engine.calls}) == 2


def test_a_weight_without_an_exact_twin_stays_wide_and_is_counted(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock, layers=2)
    engine.weights[1][3, 5] = 1.0078125  # seven bits of mantissa
    engine.load()
    assert holds("wo_a.left", engine.lines)
    assert holds("wo_a_drop.kept", engine.lines)
    assert not holds("wo_a_drop.released", engine.lines)
    assert any("twins=1 left=1 released=1 kept=1" in line for line in engine.lines)
    assert engine.model.layers[1].wo_a.weight.stride() == (COLUMNS, 1)
    x = activations(6, 4)
    assert torch.equal(bits(engine.matmul(x, engine.view(1), False)), bits(stock(x, engine.view(1), False)))


@pytest.mark.parametrize("reader", ["use_fused_wo_a", "mega_wo_a"])
def test_a_weight_that_something_else_reads_is_not_released(stock: Any, reader: str) -> None:
    engine = Engine(Modes(drop=True), stock)
    setattr(engine.model.layers[0], reader, True)
    engine.load()
    assert holds("wo_a_drop.kept", engine.lines)
    assert torch.equal(bits(engine.model.layers[0].wo_a.weight.data), bits(engine.weights[0]))


@pytest.mark.parametrize("zero", [False, True])
def test_a_released_weight_says_whether_it_was_padding(stock: Any, zero: bool) -> None:
    engine = Engine(Modes(drop=True), stock)
    if zero:
        engine.weights[0].zero_()
    engine.load()
    released = engine.model.layers[0].wo_a.weight
    assert bool(released.isnan().all())
    assert padded_attention_skip.is_zero(released) is zero
    engine.weights = [weight_of(4, 5)]
    engine.load()
    assert not padded_attention_skip.is_zero(engine.model.layers[0].wo_a.weight)


def test_other_memory_where_a_weight_lay_is_the_engines_own(stock: Any) -> None:
    """A weight that moved leaves its address to whatever comes next."""
    engine = Engine(Modes(), stock).load()
    left = engine.view()
    engine.model.layers[0].wo_a.weight.data = weight_of(4, 8)
    left.copy_(weight_of(4, 9).view(4, RANK, COLUMNS))
    x = activations(6, 4)
    assert torch.equal(bits(engine.matmul(x, left, False)), bits(stock(x, left, False)))
    assert engine.counted() == {}


@pytest.mark.parametrize("name", ["MID", "DROP", "DRAFT"])
@pytest.mark.parametrize("value", ["true", "on", "2", "false"])
def test_a_mode_is_never_guessed(name: str, value: str) -> None:
    with pytest.raises(HookError, match=f"TS-ADAPTER-SWITCH.*DSV41_WO_A_W8_{name}"):
        Modes.of({f"DSV41_WO_A_W8_{name}": value})
    assert Modes.of({f"DSV41_WO_A_W8_{name}": "1"}) == Modes(**{name.lower(): True})
    assert Modes.of({f"DSV41_WO_A_W8_{name}": "0"}) == Modes()


def test_weights_can_be_loaded_again_after_their_release(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock).load()
    engine.weights = [weight_of(4, 77)]
    engine.load()
    x = activations(6, 4)
    assert near(engine.matmul(x, engine.view(), False), x, engine.weights[0])
    assert len(engine.adapter._twins.entries) == 1  # type: ignore[union-attr]


def test_a_twin_that_the_kernel_gives_back_otherwise_is_not_taken(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock)

    class Wrong(CpuProducts):
        def widen(self, twin: Any) -> Any:
            wide = super().widen(twin)
            wide[0, 0] = -wide[0, 0]
            return wide

    engine.kernels = Wrong()
    engine.load()
    assert holds("wo_a.left", engine.lines)
    assert torch.equal(bits(engine.model.layers[0].wo_a.weight.data), bits(engine.weights[0]))


def test_without_kernels_every_weight_is_left_and_it_is_said(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock, layers=2)

    def none() -> Any:
        raise TwinError("TS-ADAPTER-KERNEL: no GPU")

    engine.adapter._make = none
    engine.load()
    assert holds("wo_a.left", engine.lines)
    assert any("state=refused" in line and "TS-ADAPTER-KERNEL" in line for line in engine.lines)
    x = activations(6, 4)
    assert torch.equal(bits(engine.matmul(x, engine.view(), False)), bits(stock(x, engine.view(), False)))


def test_a_load_for_the_next_token_layer_alone_builds_nothing(stock: Any) -> None:
    engine = Engine(Modes(drop=True), stock).load(is_nextn=True)
    assert engine.lines == []


def test_the_checkpoints_own_bytes(stock: Any) -> None:
    """Where the engine keeps e4m3 and 32 x 32 scales, they are the twin, and every other call gets them widened."""
    engine = Engine(Modes(), stock)
    layer = engine.model.layers[0]
    found = twin_format.quantise(engine.weights[0])
    assert found is not None
    layer.wo_a.weight = torch.nn.Parameter(found.codes.view(torch.float8_e4m3fn), requires_grad=False)
    layer.wo_a.weight_scale_inv = torch.nn.Parameter(found.exponents, requires_grad=False)
    engine.model_class.load_weights(engine.model, [found.codes.view(torch.float8_e4m3fn)])
    for rows, path in ((6, "small"), (300, "widened")):
        x = activations(rows, 4)
        assert near(engine.matmul(x, engine.view(), False), x, engine.weights[0])
        assert engine.counted()[path] == 1


@pytest.mark.parametrize("taken", [False, True])
def test_the_draft_is_apart_and_never_released(stock: Any, taken: bool) -> None:
    engine = Engine(Modes(mid=True, drop=True, draft=taken), stock, layers=3, draft=True).load()
    x = activations(5, 4)
    got = engine.matmul(x, engine.view(), False, is_target_verify=True)
    assert engine.counted() == ({"small": 1} if taken else {})
    assert near(got, x, engine.weights[0])
    for layer, weight in zip(engine.model.layers, engine.weights, strict=True):
        assert torch.equal(bits(layer.wo_a.weight.data), bits(weight))
    said = "draft fp8 twins: 3 weights, 0 on bf16 alone" if taken else "draft wo_a left on bf16 (3 weights)"
    assert any(said in line for line in engine.lines)
    assert not any(holds(identity, engine.lines) for identity in ("wo_a.left", "wo_a.twins", "wo_a_drop.present"))


def test_a_draft_with_an_einsum_of_its_own_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("draft")
    module.DeepseekV4ForCausalLMDSpark = type("M", (Model,), {"load_weights": Model.load_weights})  # type: ignore[attr-defined]
    lines: list[str] = []
    adapter = Adapter(Modes(draft=True), CpuProducts, Counters("wo_a_w8", *PATHS), lines.append)
    install_draft(module, adapter)
    assert "state=disabled" in capfd.readouterr().out
    weights = [weight_of(4, 1)]
    module.DeepseekV4ForCausalLMDSpark(weights).load_weights(weights)  # type: ignore[attr-defined]
    assert lines == []


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The release's modules; what the adapter replaces is put back."""
    target, draft = importlib.import_module(MODEL), importlib.import_module(DRAFT_MODEL)
    places = [
        (target, wo_a_w8.DISPATCH),
        (draft, wo_a_w8.DISPATCH),
        (target.DeepseekV4ForCausalLM, "load_weights"),
        (target.DeepseekV4ForCausalLM, "forward"),
        (draft.DeepseekV4ForCausalLMDSpark, "load_weights"),
    ]
    for owner, name in places:
        monkeypatch.setattr(owner, name, owner.__dict__[name])
    return target, draft


def test_the_releases_own_modules(real: tuple[ModuleType, ModuleType]) -> None:
    target, draft = real
    before = {name: inspect.signature(getattr(target, wo_a_w8.DISPATCH)) for name in ("dispatch",)}
    kernels, lines = CpuProducts(), []
    adapter = Adapter(Modes(mid=True, drop=True), lambda: kernels, Counters("wo_a_w8", *PATHS), lines.append)
    for _ in range(2):  # the second time changes nothing
        install_target(target, adapter)
        install_draft(draft, adapter)
    assert inspect.signature(target._apply_wo_a_bf16_matmul) == before["dispatch"]
    assert not hasattr(inspect.unwrap(target._apply_wo_a_bf16_matmul), "__wrapped__")
    assert target._apply_wo_a_bf16_matmul.__wrapped__ is inspect.unwrap(target._apply_wo_a_bf16_matmul)
    model = Model([weight_of(4, 1)])
    weights = [weight_of(4, 1)]
    adapter.load(model, False, Model.load_weights, (weights,), {})
    view = model.layers[0].wo_a.weight.view(4, RANK, -1)
    for module in (target, draft):
        for rows in (6, 24, 30):
            x = activations(rows, 4, rows)
            got = module._apply_wo_a_bf16_matmul(x, view, is_decode=False, is_target_verify=rows != 30, fast_path=True)
            assert near(got, x, weights[0])
    assert (kernels.products, kernels.widened) == (4, 1 + 2)

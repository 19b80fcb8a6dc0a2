"""Switches read values as the allowlist does; both are asked for many texts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.allowlist import Kind, Variable
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark_hooks.registry import HOOKS
from trispark_hooks.switches import Flag, Given, HookError, Number, OneOf, Switch, Text

ROOT = Path(__file__).resolve().parents[3]
ALLOWLIST = load_catalog(ROOT).allowlist
SWITCHES = {switch.name: switch for hook in HOOKS for switch in hook.switches}
TEXTS = [
    "0",
    "1",
    "2",
    "0.8",
    ".8",
    "0.80",
    "1.0",
    "-1",
    "1e1",
    " 1",
    "yes",
    "off",
    "true",
    "conf:0.1",
    "conf:",
    "nvme",
    "5",
]
TEXTS += [
    "conf:0.1,0.2",
    "conf:0.1,",
    "6",
    "NVME",
    "8192",
    "1048577",
    "0.05",
    "2.5",
    "nan",
    "inf",
    "01",
    "b12x",
    "/engram",
]


def variables() -> Iterator[tuple[Switch, Variable]]:
    for name, switch in SWITCHES.items():
        yield switch, ALLOWLIST.require(name, "the registry")


def test_every_switch_is_delivered_to_the_engine_as_its_kind() -> None:
    kinds = {
        Flag: {Kind.FLAG01},
        Number: {Kind.INT, Kind.FLOAT},
        Text: {Kind.STR},
        OneOf: {Kind.ENUM},
        Given: {Kind.PATH},
    }
    for switch, variable in variables():
        assert variable.env, switch.name
        assert variable.type in kinds[type(switch)], switch.name
        if isinstance(switch, Number):
            assert (switch.least, switch.most) == (variable.min, variable.max)
            assert switch.whole is (variable.type is Kind.INT)
        if isinstance(switch, OneOf):
            assert switch.choices == variable.choices


def accepted_by_allowlist(variable: Variable, text: str) -> bool:
    try:
        variable.parse(text, "a test")
    except TrisparkError:
        return False
    return True


def accepted(switch: Switch, text: str) -> bool:
    try:
        switch.on({switch.name: text})
    except HookError:
        return False
    return True


@pytest.mark.parametrize("text", TEXTS)
def test_a_switch_accepts_what_the_allowlist_accepts(text: str) -> None:
    for switch, variable in variables():
        if not isinstance(switch, Given):
            assert accepted(switch, text) is accepted_by_allowlist(variable, text), (switch.name, text)


@given(st.text(alphabet="0123456789.-+e:,confx ", min_size=1, max_size=8))
def test_a_number_accepts_what_the_allowlist_accepts(text: str) -> None:
    for switch, variable in variables():
        if isinstance(switch, Number | Flag | Text):
            assert accepted(switch, text) is accepted_by_allowlist(variable, text), (switch.name, text)


def test_the_baselines_neutral_values_are_off() -> None:
    baseline = load_catalog(ROOT).baseline
    for name in ("DSV41_WO_A_W8", "DSV41_DRAFT_TAU", "DSV41_VERIFY_CAP", "DSV41_BLOCK_VERIFY", "DSV41_FOLDED_FENCE"):
        assert not SWITCHES[name].on({name: str(baseline[name])}), name


@pytest.mark.parametrize(
    ("switch", "on", "off"),
    [
        (Flag("X"), ["1"], ["0", ""]),
        (Number("X", 0.1, 2, 1), ["0.8", "2", "0.1"], ["1", "1.0", ""]),
        (Number("X", 0, 100, 0, whole=True), ["1", "100"], ["0", ""]),
        (Text("X", r"0|[1-5]", "0"), ["1", "5"], ["0", ""]),
        (OneOf("X", ("nvme", "ram"), ("nvme",)), ["nvme"], ["ram", ""]),
        (Given("X"), ["/engram"], [""]),
    ],
)
def test_on_and_off(switch: Switch, on: list[str], off: list[str]) -> None:
    assert [switch.on({"X": text}) for text in on] == [True] * len(on)
    assert [switch.on({"X": text}) for text in off] == [False] * len(off)
    assert not switch.on({})
    assert not switch.on({"X": switch.off})


@pytest.mark.parametrize(
    ("switch", "text", "expected"),
    [
        (Flag("X"), "no", "X=0 or 1"),
        (Number("X", 0.1, 2, 1), "3", "a number from 0.1 to 2"),
        (Number("X", 0, 9, 0, whole=True), "1.5", "a whole number from 0 to 9"),
        (Text("X", r"0|[1-5]", "0"), "6", "like 0|[1-5]"),
        (OneOf("X", ("nvme", "ram"), ("nvme",)), "disk", "nvme or ram"),
    ],
)
def test_what_is_no_value_is_refused_by_name(switch: Switch, text: str, expected: str) -> None:
    with pytest.raises(HookError) as caught:
        switch.on({"X": text})
    message = str(caught.value)
    assert message.startswith("TS-ADAPTER-SWITCH: ")
    assert expected in message
    assert repr(text) in message
    assert "\n" not in message


def test_the_import_check_turns_every_switch_on() -> None:
    """Else --import would leave an adapter out and say that it bound."""
    from trispark.engine_api.import_check import ON

    for hook in HOOKS:
        if hook.module.startswith("sglang."):
            assert hook.enabled(ON), hook.installer

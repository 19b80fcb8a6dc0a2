"""Values of the switches of speculation, read without an engine."""

import pytest

from trispark_adapters import block_verify, draft_tau, verify_cap_policy
from trispark_adapters.verify_cap_policy import Policy
from trispark_hooks.registry import HookError


@pytest.mark.parametrize(("text", "value"), [(None, 1.0), ("", 1.0), ("1", 1.0), ("0.8", 0.8), ("2", 2.0)])
def test_a_multiplier(text: str | None, value: float) -> None:
    assert draft_tau.multiplier({} if text is None else {"DSV41_DRAFT_TAU": text}) == value


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "on", "0,8"])
def test_what_is_no_multiplier_is_refused(text: str) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-SWITCH"):
        draft_tau.multiplier({"DSV41_DRAFT_TAU": text})


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ("", None),
        ("0", None),
        ("off", None),
        ("1", Policy("1", fixed=1)),
        ("5", Policy("5", fixed=5)),
        ("conf:0.1", Policy("conf:0.1", thresholds=(0.1,))),
        ("conf:0.1,0.2,0.3,1", Policy("conf:0.1,0.2,0.3,1", thresholds=(0.1, 0.2, 0.3, 1.0))),
    ],
)
def test_a_policy(spec: str, policy: Policy | None) -> None:
    assert verify_cap_policy.parse({"DSV41_VERIFY_CAP": spec}) == policy


@pytest.mark.parametrize("spec", ["false", "8", "-1", "conf:", "conf:0", "conf:1.5", "conf:0.1,", "0.1", "conf:nan"])
def test_what_is_no_policy_is_refused(spec: str) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-CAP") as caught:
        verify_cap_policy.parse({"DSV41_VERIFY_CAP": spec})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("least", "value"), [("", 1), ("1", 1), ("3", 3)])
def test_the_least_drafts(least: str, value: int) -> None:
    policy = verify_cap_policy.parse({"DSV41_VERIFY_CAP": "conf:0.5", "DSV41_VERIFY_CAP_MIN": least})
    assert policy is not None
    assert policy.least == value


@pytest.mark.parametrize("least", ["0", "-1", "x", "8"])
def test_least_drafts_out_of_range_are_refused(least: str) -> None:
    with pytest.raises(HookError, match=r"TS-ADAPTER-CAP.*DSV41_VERIFY_CAP_MIN"):
        verify_cap_policy.parse({"DSV41_VERIFY_CAP": "2", "DSV41_VERIFY_CAP_MIN": least})


def test_limits_of_each_draft() -> None:
    assert Policy("conf:0.1", thresholds=(0.1,)).limits(3) == (0.0, 0.1, 0.1)
    assert Policy("conf:0.1,0.2", thresholds=(0.1, 0.2)).limits(3) == (0.0, 0.1, 0.2)
    with pytest.raises(HookError, match=r"TS-ADAPTER-CAP.*4 for a block of 5"):
        Policy("conf:0.1,0.2", thresholds=(0.1, 0.2)).limits(5)


@pytest.mark.parametrize(
    ("arguments", "state", "line"),
    [
        (["serve", block_verify.NATIVE_FLAG], "state=armed", "[block_verify] armed: the engine's own"),
        (
            ["serve"],
            "state=refused",
            f"[block_verify] refused: the engine has it itself: start it with {block_verify.NATIVE_FLAG}",
        ),
    ],
)
def test_an_engine_with_the_rule_itself(
    arguments: list[str], state: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    block_verify.say_native(arguments)
    said = capfd.readouterr().out
    assert state in said
    assert line in said
    assert ("armed" in said) == (state == "state=armed")

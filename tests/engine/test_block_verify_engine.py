"""Joint acceptance through the engine's own accept_draft_tokens: what comes out is distributed as the target."""

from collections.abc import Callable
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any

import pytest
from drafted_rows import GAMMA, Rows, accepted
from engine_modules import ACCEPT, DSPARK, keep, module, shows

from trispark_adapters import block_verify
from trispark_hooks.registry import HookError

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("scipy.stats", reason="scipy is not installed")


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    accept = module(ACCEPT)
    if block_verify.native(accept):
        pytest.skip("this release has block verification itself")
    keep(monkeypatch, accept, "AcceptSampling.execute")
    block_verify.install(accept)
    return module(f"{DSPARK}.dspark_verify")


def by_first_draft(rows: Rows) -> Any:
    """A stopping rule: after token 0 or 1 no further draft is verified."""
    return torch.where(rows.drafts[:, 0] < 2, 2, GAMMA)


KINDS = [["sampled"], ["greedy"], ["top-k"], ["top-p"], ["both"], ["greedy", "sampled", "top-k", "top-p", "both"]]


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
@pytest.mark.parametrize("cut", [None, by_first_draft], ids=["whole", "cut"])
def test_the_output_is_the_targets(accepting: ModuleType, kinds: list[str], cut: Callable[[Rows], Any] | None) -> None:
    torch.manual_seed(11)
    rows = [Rows(kind) for kind in kinds]
    for group, (kept, token) in zip(rows, accepted(accepting, rows, cut), strict=True):
        assert group.p_value(kept, token) > 1e-4
        if cut is not None:
            assert bool((kept <= cut(group) - 1).all())
            assert group.greedy or bool((kept == cut(group) - 1).any())


def plain_residual(original: Any) -> Any:
    return lambda target, draft, weights, tau, live: original(target, draft, torch.ones_like(weights), tau, live)


def last_draft_everywhere(original: Any) -> Any:
    rule = module("trispark_adapters.block_verify_math")

    def chances(*given: Any) -> Any:
        found = original(*given)
        return rule.Chances(found.weights, found.weights[:, 1:])

    return chances


@pytest.mark.parametrize(("name", "fault"), [("corrections", plain_residual), ("chances", last_draft_everywhere)])
def test_a_planted_fault_is_seen(
    accepting: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[[Any], Any]
) -> None:
    rule = module("trispark_adapters.block_verify_math")
    monkeypatch.setattr(rule, name, fault(getattr(rule, name)))
    torch.manual_seed(11)
    rows = [Rows("sampled")]
    ((kept, token),) = accepted(accepting, rows, None)
    assert rows[0].p_value(kept, token) < 1e-6


def test_what_it_returns(accepting: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [Rows("sampled")]
    ((kept, token),) = accepted(accepting, rows, None)
    assert kept.dtype == torch.int32
    assert token.dtype == torch.int64
    said = capfd.readouterr().out
    assert shows(said, "block_verify.used")
    assert "state=active" in said


def test_it_is_installed_once_and_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    accept = module(ACCEPT)
    keep(monkeypatch, accept, "AcceptSampling.execute")
    before = accept.AcceptSampling.__dict__["execute"]
    block_verify.install(accept)
    after = accept.AcceptSampling.__dict__["execute"]
    block_verify.install(accept)
    said = capfd.readouterr().out
    assert accept.AcceptSampling.__dict__["execute"] is after
    if block_verify.native(accept):
        assert after is before
        assert "state=refused" in said
        assert not shows(said, "block_verify.armed")
    else:
        assert isinstance(after, classmethod)
        assert shows(said, "block_verify.armed")


def test_a_further_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = module(ACCEPT)
    if block_verify.native(accept):
        pytest.skip("this release has block verification itself")
    keep(monkeypatch, accept, "AcceptSampling.execute")
    names = [*block_verify.PARAMETERS, "novelty"]

    def later() -> None: ...

    later.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])  # type: ignore[attr-defined]
    monkeypatch.setattr(accept.AcceptSampling, "torch", staticmethod(later))
    with pytest.raises(HookError, match=r"TS-ADAPTER-SIGNATURE.*novelty"):
        block_verify.install(accept)

"""The model finds what it is there for: with one guard of the product taken away it fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from fleet_machine import FleetMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from trispark import record_chain, recovery
from trispark_node import cli, epoch, fleet_lock, generations, protected, recover

SEQUENCES = 400
SEARCH = settings(
    max_examples=SEQUENCES,
    stateful_step_count=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def fence_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epoch, "write", lambda node, wanted: None)


def _admitted(*_given: Any, **_more: Any) -> Any:
    return nullcontext({})


def recover_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recover, "_end", lambda node, entry, last: recover.Ended(entry, recover.UNDONE))


def no_boot_is_an_orphan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_unrecorded", lambda answers, known: ((), ()))


def activate_is_not_atomic(patch: pytest.MonkeyPatch) -> None:
    """The link is there before the generation is looked at."""
    patch.setattr(generations, "require_whole", lambda node, generation: None)

    def stage(node: Any, request: Any) -> dict[str, Any]:
        directory = node.layout.generation(request.generation)
        node.disk.make_directory(directory)
        for name, data in sorted(request.content.items()):
            node.disk.make_directory((directory / name).parent)
            node.disk.write_new(directory / name, data)
        node.disk.write_new(directory / generations.SUMS, request.sums())
        return {}

    patch.setattr(generations, "_apply_stage", stage)


def prune_protects_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protected, "reasons", lambda node, chain: {})


def nobody_is_refused_for_the_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_lock, "admitted", _admitted)


def a_lost_lock_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_lock, "_with_loss", lambda node, state, how, by, why: ())


def a_boot_that_is_not_valid_is_left_running(patch: pytest.MonkeyPatch) -> None:
    before = cli.VERBS["stop"]

    def stop(node: Any, fields: Any) -> dict[str, Any]:
        for name in ("deadline_s", "owner", "protocol"):
            fields.anything(name)
        return {"changed": False, "stop": None, "log": None}

    patch.setitem(cli.VERBS, "stop", cli.Verb(stop, before.changes))


def records_follow_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """A controller appends to its own copy alone."""
    patch.setattr(record_chain, "leading_head", lambda heads, cache: cache.head())


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    each.__name__: each
    for each in (
        fence_does_nothing,
        recover_does_nothing,
        no_boot_is_an_orphan,
        activate_is_not_atomic,
        prune_protects_nothing,
        nobody_is_refused_for_the_lock,
        a_lost_lock_is_forgotten,
        a_boot_that_is_not_valid_is_left_running,
        records_follow_whatever_is_there,
    )
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds_a_guard_that_was_taken_away(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    MUTANTS[name](monkeypatch)
    before = FleetMachine.figures["sequences"]
    with pytest.raises(BaseException) as found:  # noqa: PT011
        run_state_machine_as_test(FleetMachine, settings=SEARCH)
    print(f"{name}: {FleetMachine.figures['sequences'] - before} sequences, {found.value!s:.160}")

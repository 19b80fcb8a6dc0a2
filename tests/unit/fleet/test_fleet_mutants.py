"""The model finds what it is there for: with one guard of the product taken away it fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fleet_machine import FleetMachine, Template
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from trispark import record_chain, recovery
from trispark_node import engine, epoch, fleet_lock, fleet_lock_file, protected, recover

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


def recover_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recover, "_end", lambda node, entry, last: recover.Ended(entry, recover.UNDONE))


def no_boot_is_an_orphan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_unrecorded", lambda answers, known: ((), (), ()))


def no_rollback_is_completed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_incomplete", lambda answers, missing: None)


def prune_protects_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protected, "reasons", lambda node, chain: {})


def every_lease_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_lock_file.Lease, "alive", property(lambda self: False))


def a_lost_lock_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_lock, "_with_loss", lambda node, state, how, by, why: ())


def stop_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "stop_containers", lambda node, deadline_s, containers, **more: dict(STOPPED))
    patch.setattr(engine, "_prove_stopped", lambda node, done, wait_s: {})


STOPPED = {"seconds": 0.0, "killed": False, "log": None, "exit_code": None}


def records_follow_the_own_copy(patch: pytest.MonkeyPatch) -> None:
    """Whatever the nodes have."""
    patch.setattr(record_chain, "leading_head", lambda heads, cache: cache.head())


def no_record_is_copied_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record_chain, "needed", lambda head, heads, cache: [])


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    each.__name__: each
    for each in (
        fence_does_nothing,
        recover_does_nothing,
        no_boot_is_an_orphan,
        no_rollback_is_completed,
        prune_protects_nothing,
        every_lease_has_ended,
        a_lost_lock_is_forgotten,
        stop_does_nothing,
        records_follow_the_own_copy,
        no_record_is_copied_before,
    )
}


@pytest.fixture(scope="module", autouse=True)
def first_boot(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With all guards."""
    Template.copy(tmp_path_factory.mktemp("template") / "fleet")


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds_a_guard_that_was_taken_away(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    MUTANTS[name](monkeypatch)
    before = FleetMachine.figures["sequences"]
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(FleetMachine, settings=SEARCH)
    print(f"{name}: {FleetMachine.figures['sequences'] - before} sequences, {found.value!s:.160}")

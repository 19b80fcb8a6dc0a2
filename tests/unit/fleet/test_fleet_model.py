"""A thousand sequences of boots, stops, rollbacks, promotions, lost nodes, killed controllers and recoveries."""

from __future__ import annotations

import time

import pytest
from fleet_machine import FleetMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

SEQUENCES = 1000
STEPS = 9
MODEL = settings(
    max_examples=SEQUENCES,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


AT_LEAST = {
    "fired": {
        **dict.fromkeys(("boot", "rollback", "recover"), 400),
        **dict.fromkeys(("stop", "promote", "prune", "node lost", "node started again", "engine ended"), 100),
        **dict.fromkeys(("goes on", "held one killed"), 20),
    },
    "ends": {
        **dict.fromkeys(("boot: ok", "rollback: ok", "recover: ok"), 200),
        **dict.fromkeys(("controller killed", "agent dies", "held", "node lost"), 100),
    },
}
"""Less than that would be a run that proves little; hypothesis draws the same sequences each time."""


@pytest.mark.slow
def test_whatever_happens_in_whatever_order_the_fleet_keeps_its_word() -> None:
    for counts in (FleetMachine.figures, FleetMachine.fired, FleetMachine.ends):
        counts.clear()
    began = time.process_time()
    run_state_machine_as_test(FleetMachine, settings=MODEL)
    for counts in (FleetMachine.figures, FleetMachine.fired, FleetMachine.ends):
        print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"{time.process_time() - began:.0f} s of one core")
    assert FleetMachine.figures["sequences"] >= SEQUENCES
    for kind, wanted in AT_LEAST.items():
        counted = getattr(FleetMachine, kind)
        few = {name: counted[name] for name, least in wanted.items() if counted[name] < least}
        assert few == {}, f"{kind} too seldom"

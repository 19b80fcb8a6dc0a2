"""A thousand sequences of boots, stops, rollbacks, promotions, lost nodes, killed controllers and recoveries."""

from __future__ import annotations

import time

import pytest
from fleet_machine import FleetMachine
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

SEQUENCES = 1000
SHARES = 4
"""Each is a test with a seed of its own, so that the workers share them."""
STEPS = 9
MODEL = settings(
    max_examples=SEQUENCES // SHARES,
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
        **dict.fromkeys(("stop", "promote", "prune", "node lost", "node started again", "engine ended"), 60),
        "goes on": 20,
        "held one killed": 4,
    },
    "ends": {
        **dict.fromkeys(("boot: ok", "rollback: ok", "recover: ok"), 200),
        **dict.fromkeys(("controller killed", "agent dies", "held", "node lost"), 100),
    },
}
"""In all shares. Less than that would be a run that proves little; a seed draws the same sequences each time."""


@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_in_whatever_order_the_fleet_keeps_its_word(share: int) -> None:
    for counts in (FleetMachine.figures, FleetMachine.fired, FleetMachine.ends):
        counts.clear()
    began = time.process_time()
    run_state_machine_as_test(seed(share)(type("Share", (FleetMachine,), {})), settings=MODEL)
    for counts in (FleetMachine.figures, FleetMachine.fired, FleetMachine.ends):
        print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"{time.process_time() - began:.0f} s of one core")
    assert FleetMachine.figures["sequences"] >= SEQUENCES // SHARES
    for kind, wanted in AT_LEAST.items():
        counted = getattr(FleetMachine, kind)
        few = {name: counted[name] for name, least in wanted.items() if counted[name] < least / SHARES}
        assert few == {}, f"{kind} too seldom"

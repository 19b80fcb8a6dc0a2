#!/usr/bin/python
"""Judges the gates of a boot on the controller; the work is in trispark.gates."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_gates
short_description: Compare what every rank runs with what was planned
description:
  - Runs on the controller and reads only. Fails when one check of one rank fails; all results are returned either way.
options:
  phase:
    description: V(boot) judges everything with the canary; V(after_load) what must still be true after the measurement.
    type: str
    choices: [boot, after_load]
    default: boot
  plan:
    description: What M(trispark_plan) returned as C(plan).
    type: dict
    required: true
  observations:
    description: Answers of the agent's verb C(observe) by node.
    type: dict
    required: true
  before:
    description:
      - For V(boot) the row lookups by node and layer before the canary.
      - For V(after_load) the earlier observations.
    type: dict
    required: true
  shards:
    description: Answers of the agent's verb C(engram) by node; the last rank's end rows are the sizes of the tables.
    type: dict
    required: true
  canary:
    description: Answer of the agent's verb C(request) for the canary.
    type: dict
    default: {}
  batch:
    description: Answer of the agent's verb C(request-batch) for the warm-up batch, where the plan has one.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Judge the gates
  trispark_gates:
    plan: "{{ plan }}"
    observations: "{{ observations }}"
    before: "{{ before }}"
    shards: "{{ shards }}"
    canary: "{{ canary }}"
    batch: "{{ batch }}"
"""

RETURN = r"""
gates:
  description: Every check with rank, ok, expected and observed.
  type: list
  elements: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import owned_rows, table_rows
from trispark.errors import TrisparkError
from trispark.gates import evaluate, evaluate_after_load, failed
from trispark.resolve import restore


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["boot", "after_load"], "default": "boot"},
            "plan": {"type": "dict", "required": True},
            "observations": {"type": "dict", "required": True},
            "before": {"type": "dict", "required": True},
            "shards": {"type": "dict", "required": True},
            "canary": {"type": "dict", "default": {}},
            "batch": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        resolution = restore(given["plan"]["resolved"])
        rows = table_rows(given["plan"], given["shards"])
        if given["phase"] == "boot":
            wanted = given["plan"]["batch"]["requests"]
            batch = (given["batch"].get("answers") or []) if wanted else None
            canary = given["canary"] or None
            owned = owned_rows(given["shards"])
            results = evaluate(resolution, given["observations"], canary, rows, given["before"], batch, owned)
        else:
            results = evaluate_after_load(resolution, given["observations"], given["before"], rows)
    except TrisparkError as error:
        fail(module, error.as_dict(), gates=[])
    gates = [result.as_dict() for result in results]
    bad = failed(results)
    if bad or not results:
        first = bad[0].line() if bad else "no gate was judged"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        module.fail_json(msg=f"{first}{more}", check_id=bad[0].check_id if bad else "gates", gates=gates)
    module.exit_json(changed=False, gates=gates)


if __name__ == "__main__":
    main()

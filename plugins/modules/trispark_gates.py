#!/usr/bin/python
"""Judges the gates of a boot on the controller; the work is in trispark.gates."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_gates
short_description: Compare what every rank runs with what was planned
description:
  - Runs on the controller and reads only. Fails when one check of one rank fails; all results are returned either way.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  plan:
    description: What M(trispark_plan) returned as C(plan).
    type: dict
    required: true
  observations:
    description: Answers of the agent's verb C(observe) by node, after the canary.
    type: dict
    required: true
  before:
    description: Row lookups by node and layer before the canary.
    type: dict
    required: true
  shards:
    description: Answers of the agent's verb C(engram) by node; the last rank's end rows are the sizes of the tables.
    type: dict
    required: true
  canary:
    description: Answer of the agent's verb C(request) for the canary.
    type: dict
    required: true
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
    root: "{{ playbook_dir }}/.."
    plan: "{{ plan }}"
    observations: "{{ observations }}"
    before: "{{ before }}"
    shards: "{{ shards }}"
    canary: "{{ canary }}"
"""

RETURN = r"""
gates:
  description: Every check with rank, ok, expected and observed.
  type: list
  elements: dict
  returned: always
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import table_rows
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.gates import evaluate, failed
from trispark.resolve import restore


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "plan": {"type": "dict", "required": True},
            "observations": {"type": "dict", "required": True},
            "before": {"type": "dict", "required": True},
            "shards": {"type": "dict", "required": True},
            "canary": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    try:
        resolution = restore(given["plan"]["resolved"], load_catalog(root), root)
        rows = table_rows(given["plan"], given["shards"])
        results = evaluate(resolution, given["observations"], given["canary"], None, rows, given["before"])
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

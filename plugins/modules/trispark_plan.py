#!/usr/bin/python
"""Plans one boot on the controller; the work is in trispark.boot_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_plan
short_description: Plan one boot from the catalog, or a rollback from what the nodes hold
description:
  - Runs on the controller and reads only. Touches no node.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site, the directory below C(inventory/).
    type: str
    required: true
  stage:
    description: Letter of the stage; empty for a plain boot.
    type: str
    default: ""
  feature:
    description: A candidate tries it, the baseline of a trial holds what it requires; others do not have it.
    type: str
    default: ""
  value:
    description: The value of a sweep; empty for every other feature. It counts where O(feature) does.
    type: str
    default: ""
  arm:
    description: What to plan; V(stored) takes it from O(stored). Where it is empty, O(feature) asks for the candidate.
    type: str
    choices: ["", baseline, candidate, stored]
    default: ""
  purpose:
    description: Why it is booted; only V(serve) and V(rollback) make a generation good.
    type: str
    choices: [serve, trial, restore, rollback, verify]
    required: true
  trial:
    description: Id of the trial that the boot belongs to; empty outside a trial.
    type: str
    default: ""
  slot:
    description: The boot's place in its trial; -1 outside a trial.
    type: int
    default: -1
  planned:
    description: The generation that the trial's plan names for this boot; another one is refused. Empty for any.
    type: str
    default: ""
  check:
    description: Plan the candidate that compares results, for features that have such a boot.
    type: bool
    default: false
  measure:
    description: Whether the boot is measured.
    type: bool
    default: false
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    default: {}
  stored:
    description: Answers of the agent's verb C(generation-show) by node.
    type: dict
    default: {}
  variables:
    description: Names of variables in upper case that Ansible knows; a catalog key among them is refused.
    type: list
    elements: str
    default: []
  site_variables:
    description: The C(site_) variables as the playbook sees them; one that differs from the site's files is refused.
    type: dict
    default: {}
  started:
    description: Seconds since the epoch at which the verb began; 0 for now.
    type: float
    default: 0
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the baseline
  trispark_plan:
    root: "{{ playbook_dir }}/.."
    site: lab
    arm: baseline
    purpose: serve
"""

RETURN = r"""
plan:
  description: The plan as C(src/trispark/boot_plan.py) describes it.
  type: dict
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import Moment, Project, plan_arm, plan_stored
from trispark.errors import TrisparkError
from trispark.record_chain import heads_of, leading_head
from trispark.records import RecordCache


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "stage": {"type": "str", "default": ""},
            "feature": {"type": "str", "default": ""},
            "value": {"type": "str", "default": ""},
            "arm": {"type": "str", "choices": ["", "baseline", "candidate", "stored"], "default": ""},
            "purpose": {
                "type": "str",
                "choices": ["serve", "trial", "restore", "rollback", "verify"],
                "required": True,
            },
            "trial": {"type": "str", "default": ""},
            "slot": {"type": "int", "default": -1},
            "planned": {"type": "str", "default": ""},
            "check": {"type": "bool", "default": False},
            "measure": {"type": "bool", "default": False},
            "statuses": {"type": "dict", "default": {}},
            "stored": {"type": "dict", "default": {}},
            "variables": {"type": "list", "elements": "str", "default": []},
            "site_variables": {"type": "dict", "default": {}},
            "started": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        if given["arm"] == "stored":
            plan = plan_stored(
                purpose=given["purpose"], stored=given["stored"], statuses=given["statuses"], moment=Moment.current()
            )
        else:
            root = Path(given["root"]).resolve()
            plan = plan_arm(
                Project.load(root, given["site"]),
                stage=given["stage"],
                feature=given["feature"],
                value=given["value"],
                arm=given["arm"],
                purpose=given["purpose"],
                trial=given["trial"],
                slot=given["slot"] if given["slot"] >= 0 else None,
                planned=given["planned"],
                check=given["check"],
                measure=given["measure"],
                statuses=given["statuses"],
                misplaced=dict.fromkeys(given["variables"], "-e or a variable of the inventory"),
                seen_site=given["site_variables"],
                moment=Moment.current(),
            )
            # A fork would be found after the boot otherwise, which then had no record.
            leading_head(heads_of(given["statuses"]), RecordCache(root / ".trispark" / given["site"] / "records"))
    except TrisparkError as error:
        fail(module, error.as_dict())
    if given["started"]:
        plan["started"] = given["started"]
    module.exit_json(changed=False, plan=plan)


if __name__ == "__main__":
    main()

#!/usr/bin/python
"""Plans the boots of a stage on the controller; the work is in trispark.walk_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_trial
short_description: Plan the trial of one feature, or of every value of a sweep
description:
  - Runs on the controller and reads only. Touches no node.
  - The site's promoted baseline is the one that the controller saw last.
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
    description: Letter of the stage.
    type: str
    required: true
  feature:
    description: The feature to try; with O(resume) it may be left out.
    type: str
    default: ""
  value:
    description: One value of a sweep; empty for all of them.
    type: str
    default: ""
  resume:
    description: Id of a trial that was begun and is to go on.
    type: str
    default: ""
  trial:
    description: Id for a new trial, or of one to resume if it was begun; a campaign gives it.
    type: str
    default: ""
  plan:
    description: Ids of the plans that were agreed on, with commas between them; others are refused. Empty for any.
    type: str
    default: ""
  variables:
    description: Names of variables in upper case that Ansible knows; a catalog key among them is refused.
    type: list
    elements: str
    default: []
  site_variables:
    description: The C(site_) variables as the playbook sees them; one that differs from the site's files is refused.
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
- name: Plan the trial
  trispark_trial:
    root: "{{ playbook_dir }}/.."
    site: lab
    stage: c
    feature: wo_a
"""

RETURN = r"""
walk:
  description: Id of the trial, feature and value, and whether it was begun before.
  type: dict
  returned: success
lines:
  description: What each trial changes, and the stage's entry criteria, for people.
  type: list
  elements: str
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import Moment
from trispark.errors import TrisparkError
from trispark.plan import Ground
from trispark.records import RecordCache
from trispark.stages import entry
from trispark.walk_plan import kept_walk, plan_walk, require_feature, was_begun
from trispark.walk_run import require_need


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "stage": {"type": "str", "required": True},
            "feature": {"type": "str", "default": ""},
            "value": {"type": "str", "default": ""},
            "resume": {"type": "str", "default": ""},
            "trial": {"type": "str", "default": ""},
            "plan": {"type": "str", "default": ""},
            "variables": {"type": "list", "elements": "str", "default": []},
            "site_variables": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    feature, value = given["feature"], given["value"]
    try:
        ground = Ground.load(root, given["site"])
        ground.catalog.refuse_misplaced(dict.fromkeys(given["variables"], "-e or a variable of the inventory"))
        ground.site.refuse_other_values(given["site_variables"])
        resumed = given["resume"] or (given["trial"] if was_begun(root, given["site"], given["trial"]) else "")
        if resumed:
            kept = kept_walk(root, given["site"], resumed)
            require_feature(kept, given["stage"], feature, value)
            feature, value = kept.feature, kept.value or ""
        name = resumed or given["trial"] or Moment.current().trial_id
        walk = plan_walk(ground, name, given["stage"], feature, value, given["plan"])
        records = RecordCache(root / ".trispark" / given["site"] / "records").list()
        if not resumed:
            require_need(ground.catalog, walk, records)
        criteria = entry(ground.catalog, walk.stage, walk.site_baseline, records)
    except TrisparkError as error:
        fail(module, error.as_dict())
    module.exit_json(
        changed=False,
        walk={"id": name, "feature": feature, "value": value, "resumed": bool(resumed)},
        lines=[*walk.lines(), *(judged.line() for judged in criteria)],
    )


if __name__ == "__main__":
    main()

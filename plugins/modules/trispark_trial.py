#!/usr/bin/python
"""Plans the boots of a stage on the controller; the work is in trispark.walk_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_trial
short_description: Plan the trial of one feature, or of every value of a sweep
description:
  - Runs on the controller and reads only. Touches no node.
  - One that was begun and cannot be planned any more is not refused but brought back; C(walk.refused) says why.
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
  deadline:
    description: No boot begins that cannot end before; ISO 8601, local time of the site where it says no zone.
    type: str
    default: ""
  drain_deadline_s:
    description: Wait so many seconds for running requests to end; empty or 0 for no drain.
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
  description:
    - Id of the trial, feature and value, and whether it was begun before.
    - C(refused) says why it cannot go on; C(boots) whether a boot of it may begin, for which the nodes are prepared.
    - C(deadline) is in UTC, C(drain_s) is 0 where no drain is wanted or needed.
  type: dict
  returned: success
lines:
  description: What each trial changes, and the stage's entry criteria, for people.
  type: list
  elements: str
  returned: success
"""

from datetime import UTC, datetime
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import Moment
from trispark.errors import TrisparkError
from trispark.trial_begin import TrialAsked, begin_trial


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
            "deadline": {"type": "str", "default": ""},
            "drain_deadline_s": {"type": "str", "default": ""},
            "variables": {"type": "list", "elements": "str", "default": []},
            "site_variables": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    asked = TrialAsked(
        root=Path(given["root"]).resolve(),
        site=given["site"],
        stage=given["stage"],
        feature=given["feature"],
        value=given["value"],
        resume=given["resume"],
        trial=given["trial"],
        agreed=given["plan"],
        deadline=given["deadline"],
        drain=given["drain_deadline_s"],
        misplaced=given["variables"],
        seen_site=given["site_variables"],
    )
    try:
        begin = begin_trial(asked, datetime.now(UTC), Moment.current().trial_id)
    except TrisparkError as error:
        fail(module, error.as_dict())
    module.exit_json(
        changed=False,
        walk={
            "id": begin.walk,
            "feature": begin.feature,
            "value": begin.value,
            "resumed": begin.resumed,
            "refused": begin.refused,
            "boots": begin.boots,
            "deadline": "" if begin.deadline is None else begin.deadline.isoformat(),
            "drain_s": begin.drain_s,
        },
        lines=begin.lines,
    )


if __name__ == "__main__":
    main()

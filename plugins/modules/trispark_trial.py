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
  boots:
    description: Counted boots an arm of a new trial; empty for as many as the site says. A resumed trial keeps its own.
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
  names:
    description: Names of all other variables that Ansible knows; one that is nearly one of a trial is refused.
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
    - C(boots_an_arm) is what O(boots) was.
    - C(deadline) is in UTC, C(drain_s) is 0 where no drain is wanted or needed.
  type: dict
  returned: success
lines:
  description: What each trial changes, and the stage's entry criteria, for people.
  type: list
  elements: str
  returned: success
"""

# The task runs plugins/action/trispark_trial.py on the controller; this file is its documentation.

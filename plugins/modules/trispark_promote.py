#!/usr/bin/python
"""Plans a promotion on the controller and keeps the controller's copy; the work is in trispark.promote."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_promote
short_description: Turn the KEEP of a trial into the site's baseline, or go back to the shipped one
description:
  - Runs on the controller. V(planned) reads only and says what each node is to get.
  - V(cached) writes the controller's copy.
options:
  state:
    description: What is done.
    type: str
    choices: [planned, cached]
    default: planned
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  record:
    description: Id of a trial's record that says KEEP.
    type: str
    default: ""
  revert:
    description: Go back to the shipped baseline.
    type: bool
    default: false
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    default: {}
  baseline:
    description: For V(cached), what the nodes hold now; empty for the shipped one.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Nothing is written in check mode.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the promotion
  trispark_promote:
    root: "{{ playbook_dir }}/.."
    site: lab
    record: t20260102T030405Z-a1b2
    statuses: "{{ statuses }}"
"""

RETURN = r"""
baseline:
  description: What every node is to hold; empty for the shipped baseline.
  type: dict
  returned: O(state=planned)
requests:
  description: By node what the agent's verb C(baseline-set) is to get.
  type: dict
  returned: O(state=planned)
lines:
  description: For people.
  type: list
  elements: str
  returned: O(state=planned)
published:
  description: The result for the caller of the playbook.
  type: dict
  returned: O(state=planned)
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import Project
from trispark.errors import TrisparkError
from trispark.preflight import require_nodes
from trispark.promote import Promotion, plan_promotion, plan_revert, promotable
from trispark.promoted import REVERT, Promoted, write_cache
from trispark.record_chain import heads_of, leading_head
from trispark.records import RecordCache


def planned(root: Path, given: dict[str, Any]) -> Promotion:
    project = Project.load(root, given["site"])
    require_nodes(project.site, given["statuses"])
    if given["revert"]:
        return plan_revert(given["statuses"], given["record"])
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    cache.verify()
    leading_head(heads_of(given["statuses"]), cache)
    return plan_promotion(
        root=root,
        site=project.site,
        catalog=project.catalog,
        records=cache.list(),
        record=promotable(cache, given["record"]),
        statuses=given["statuses"],
        time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["planned", "cached"], "default": "planned"},
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "record": {"type": "str", "default": ""},
            "revert": {"type": "bool", "default": False},
            "statuses": {"type": "dict", "default": {}},
            "baseline": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    try:
        if given["state"] == "cached":
            promoted = Promoted.of(given["baseline"], "the answer of the nodes", REVERT) if given["baseline"] else None
            changed = False if module.check_mode else write_cache(root, given["site"], promoted)
            module.exit_json(changed=changed)
        promotion = planned(root, given)
    except TrisparkError as error:
        fail(module, error.as_dict())
    module.exit_json(
        changed=False,
        baseline=promotion.baseline.as_dict() if promotion.baseline else {},
        requests=promotion.requests(),
        lines=promotion.lines(),
        published=promotion.published(),
    )


if __name__ == "__main__":
    main()

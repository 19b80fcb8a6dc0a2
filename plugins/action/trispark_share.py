"""Says how a site shares its checkpoint, and what was compared; the work is in trispark.share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.share import published, share_lines, share_requests
from trispark.site import load_site


class ActionModule(ControllerAction):
    """plugins/modules/trispark_share.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "site_variables": {"type": "dict", "default": {}},
        "read": {"type": "dict", "default": {}},
        "verified": {"type": "dict", "default": {}},
        "tolerant": {"type": "bool", "default": False},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        try:
            site = load_site(Path(given["root"]).resolve() / "inventory" / given["site"], images="optional")
            site.refuse_other_values(given["site_variables"])
        except TrisparkError as error:
            if not given["tolerant"]:
                raise
            return {"changed": False, "shares": {}, "lines": [], "warnings": [f"the share is not verified: {error}"]}
        return {
            "changed": False,
            "kind": site.checkpoint_share.kind,
            "head": site.head.name,
            "shares": share_requests(site),
            "lines": share_lines(site, given["read"], given["verified"]),
            "published": published(site, given["read"], given["verified"]),
        }

"""Names in a site's files that each pass alone: a variable of Ansible that is misspelt, two names for one image."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from trispark.allowlist import SITE_IMAGE
from trispark.errors import TrisparkError
from trispark.site import Site

OF_ANSIBLE: Final = (
    "ansible_become",
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_become_method",
    "ansible_become_pass",
    "ansible_become_password",
    "ansible_become_user",
    "ansible_connection",
    "ansible_host",
    "ansible_password",
    "ansible_pipelining",
    "ansible_port",
    "ansible_private_key_file",
    "ansible_python_interpreter",
    "ansible_remote_tmp",
    "ansible_scp_extra_args",
    "ansible_sftp_extra_args",
    "ansible_shell_executable",
    "ansible_shell_type",
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_executable",
    "ansible_ssh_extra_args",
    "ansible_ssh_host",
    "ansible_ssh_host_key_checking",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_ssh_pipelining",
    "ansible_ssh_port",
    "ansible_ssh_private_key_file",
    "ansible_ssh_retries",
    "ansible_ssh_timeout",
    "ansible_ssh_transfer_method",
    "ansible_ssh_user",
    "ansible_timeout",
    "ansible_user",
)
"""By which Ansible reaches a node over ssh or locally."""
_NEAR: Final = 0.85
"""How like one of them a name must be that is none, so that a variable of one's own is let through."""


def misspelled_keys(site: Site) -> Iterator[TrisparkError]:
    """TS-SITE-SCHEMA for each variable that is nearly one of Ansible's: Ansible itself passes it over."""
    for key, place in sorted(site.other_keys.items()):
        near = [] if key in OF_ANSIBLE else difflib.get_close_matches(key, OF_ANSIBLE, n=1, cutoff=_NEAR)
        if near:
            yield TrisparkError(
                "TS-SITE-SCHEMA",
                f"{key} is no variable of Ansible, which passes it over",
                where=place,
                expected=near[0],
                observed=key,
                remedy=f"write {near[0]}, or give a variable of your own another name",
            )


def same_images(site: Site) -> Iterator[TrisparkError]:
    """TS-PLAN-IMAGE-SAME for each further image with the digest of the site's own, or of one before it by name."""
    named = {} if site.engine_image is None else {SITE_IMAGE: site.engine_image}
    first: dict[str, str] = {}
    for name, image in {**named, **dict(sorted(site.engine_images.items()))}.items():
        digest = image.rpartition("@")[2]
        other = first.setdefault(digest, name)
        if other != name:
            yield TrisparkError(
                "TS-PLAN-IMAGE-SAME",
                f"the images {other} and {name} are one",
                where=f"{site.path}: site_engine_images",
                expected="another digest for each name, and none that of site_engine_image",
                observed=digest,
                remedy=f"give {name} the digest of another build, or remove it",
            )

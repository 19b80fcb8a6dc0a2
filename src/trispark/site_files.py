"""Writes the files of a new site from the commented template."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError

TEMPLATE: Final = Path("templates/site")
TOKEN: Final = "__SITE__"
NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")


def site_files(root: Path, name: str) -> dict[str, str]:
    """{path below the inventory directory: text} of a site called `name`."""
    template = root / TEMPLATE
    return {
        path.relative_to(template).as_posix(): path.read_text(encoding="utf-8").replace(TOKEN, name)
        for path in sorted(template.rglob("*.yml"))
    }


def write_site(root: Path, name: str) -> list[Path]:
    """Make `inventory/<name>`, whole or not at all; the written files.

    Raises TS-SITE-NAME, and TS-SITE-EXISTS when anything of that name is there.
    """
    if NAME.fullmatch(name) is None:
        raise TrisparkError(
            "TS-SITE-NAME",
            "this cannot be the name of a site",
            where="inventory/",
            expected=f"a name like {NAME.pattern}",
            observed=name[:80],
            remedy="choose a name of small letters, digits and hyphens",
        )
    target = root / "inventory" / name
    if target.is_symlink() or target.exists():
        raise TrisparkError(
            "TS-SITE-EXISTS",
            f"there is a site {name} already, it stays as it is",
            where=f"inventory/{name}",
            expected="nothing of that name",
            observed="a file or directory",
            remedy=f"take another name, or check it: ./trispark site check {name}",
        )
    target.parent.mkdir(exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".site-", dir=target.parent))
    try:
        files = site_files(root, name)
        for relative, text in files.items():
            path = staging / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)
        for directory in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return [target / relative for relative in files]

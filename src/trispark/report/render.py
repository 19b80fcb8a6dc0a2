"""Writes the parts of a report through the templates of templates/report, within the size that a report may have."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal

import jinja2

from trispark.errors import TrisparkError
from trispark.report.build import Material, build
from trispark.report.page import Page
from trispark.report.sources import Asked

Format = Literal["html", "md"]
LIMIT: Final = 2_000_000
"""Bytes of a report at most."""
MARKER: Final = b"trispark report"
"""Begins every report, so that one may be written over."""
HEAD: Final = 200
SPECIAL: Final = re.compile(r"([\\`*_\[\]|#])")


def report_text(root: Path, asked: Asked, form: Format) -> str:
    """The report as HTML or Markdown; the same records give the same text.

    It holds as much as fits in LIMIT. Raises TS-REPORT-SIZE when not even the verdicts do, TS-RENDER-TEMPLATE for a
    template that cannot be used.
    """
    size = 0
    material = Material.of(asked)
    for content in material.contents():
        text = render(root, build(material, content), form)
        size = len(text.encode("utf-8"))
        if size < LIMIT:
            return text
    raise TrisparkError(
        "TS-REPORT-SIZE",
        "there are too many trials for one report",
        where=asked.name,
        expected=f"below {LIMIT} bytes",
        observed=f"{size} bytes with the verdicts alone",
        remedy="make reports of the single trials",
    )


def render(root: Path, page: Page, form: Format) -> str:
    """One page through its template. Raises TS-RENDER-TEMPLATE."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "templates" / "report"),
        undefined=jinja2.StrictUndefined,
        autoescape=form == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = markdown_text
    environment.filters["in_code"] = markdown_code
    name = f"page.{form}.j2"
    try:
        return environment.get_template(name).render(page=page, data=script_json(page.data))
    except jinja2.TemplateError as error:
        raise TrisparkError(
            "TS-RENDER-TEMPLATE",
            "a template cannot be used",
            where=f"templates/report/{name}",
            expected="a template that fits its values",
            observed=str(error),
            remedy="restore it from git",
        ) from None


def script_json(text: str) -> str:
    """JSON that no parser of HTML takes for markup, wherever it stands; it means the same."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def markdown_text(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", line)


def markdown_code(text: str) -> str:
    """A text as code, also in a cell of a table; with a backtick in it, as plain text."""
    line = " ".join(str(text).split())
    return markdown_text(line) if not line or set(line) & set("`|<") else f"`{line}`"


def write_report(target: Path, text: str) -> None:
    """The whole file or none; an older report is replaced, and nothing else. Raises TS-REPORT-OUT."""
    try:
        if target.exists():
            with target.open("rb") as file:
                if MARKER not in file.read(HEAD):
                    raise _not_written(target, "a new name, or an older report", "a file that is no report")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("x", encoding="utf-8", newline="\n") as file_of_text:
                file_of_text.write(text)
                file_of_text.flush()
                os.fsync(file_of_text.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _not_written(target, "a place that this user can write", str(error)) from None


def _not_written(target: Path, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-REPORT-OUT",
        "the report cannot be written",
        where=str(target),
        expected=expected,
        observed=observed,
        remedy="give another place with --out",
    )

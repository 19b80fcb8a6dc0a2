"""The chain of `./trispark images verify` for people, from its published form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark.errors import TrisparkError
from trispark.images.rank_chain import NOTHING_RUNS, OF_SITE


def lines(found: Mapping[str, Any]) -> list[str]:
    """The site's image and who signed for it, a line a step, the odd nodes, and one line to end with."""
    image = found["image"]
    width = max((len(step["step"]) for step in found["steps"]), default=0)
    out = [f"{'image':<{width}}  {image['reference'] or 'the site has none yet'}"]
    if image["provenance"] is not None:
        out.append(f"{'provenance':<{width}}  {_provenance(image['provenance'], demanded=image['demanded'])}")
    for step in found["steps"]:
        out.append(f"{step['step']:<{width}}  {_values(step)}")
        out += [f"{'':<{width}}  {node}: {text}" for node, text in step["problems"].items()]
    out += [f"{node}  no answer" for node in found["unreachable"]]
    runs = f"an engine runs on {', '.join(found['running'])}" if found["running"] else NOTHING_RUNS
    state = "equal on" if found["equal"] else "not equal on"
    site = "" if found["of_site"] else ", NOT AN IMAGE OF THIS SITE"
    return [_plain(line) for line in [*out, f"{state} {len(found['ranks'])} ranks{site}; {runs}"]]


def _values(step: Mapping[str, Any]) -> str:
    if step["equal"] is None:
        return NOTHING_RUNS
    if step["equal"]:
        return ", ".join(sorted({_short(value) for value in step["values"].values() if value})) or "none"
    each = ", ".join(f"{node} {_short(value) if value else 'none'}" for node, value in step["values"].items())
    return f"{'NONE OF THIS SITE' if step['step'] in OF_SITE else 'DIFFERS'}: {each}"


def _provenance(found: Mapping[str, Any], *, demanded: bool) -> str:
    """Who signed for the site's image, or why that cannot be shown, and what the site makes of it."""
    if found["verified"]:
        return f"signed by {found['fact']['signer']} with {found['fact']['key']}, verified"
    if found["problem"] is None:
        signed = "a signature, which nobody judged" if found["signed"] else "no signature"
        return f"a statement is kept, with {signed}: the site demands none"
    problem = str(TrisparkError(**found["problem"]))
    return f"a boot of it is refused: {problem}" if demanded else f"the site demands none; {problem}"


def _short(value: str) -> str:
    return value[:26] if value.startswith("sha256:") else value[:40] if "@" not in value else value


def _plain(line: str) -> str:
    """On one line, whatever a node or a statement says."""
    return "".join(each if each.isprintable() else "?" for each in line)

"""`support-bundle`: one tar.gz for a report on a fault, made whatever does not answer, without secrets.

    versions.json, site/, controller/, nodes/<node>/, missing.txt, manifest.json

Nodes are asked through the playbook `support`, which leaves a file of each that answered; it is stopped when it takes
too long. Everything is redacted once more here, whatever an agent did before.
"""

from __future__ import annotations

import getpass
import json
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

from trispark.errors import TrisparkError
from trispark.run_events import FailedEvent
from trispark.support_redaction import Anonymous, redacted
from trispark.support_sources import controller_texts
from trispark.tar_file import packed, write_new

NODES_S: Final = 18.0
"""For all nodes together, before the playbook is asked to end."""
MOST_BYTES: Final = 20 * 2**20
SCHEMA_VERSION: Final = 1

Ask = Callable[[Path], Sequence[FailedEvent]]
"""Has each node's answer written as `<directory>/<node>.json`; what failed."""


@dataclass(frozen=True)
class Bundle:
    """`missing`: {node or part: why it is not in it}."""

    path: Path
    size: int
    files: int
    missing: dict[str, str]


def make_bundle(
    root: Path, site: str, ask: Ask, out: Path | None, *, anonymous: bool, now: float | None = None
) -> Bundle:
    """Raises TS-SUPPORT-FILE when the bundle cannot be written; nothing else, whatever is broken."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() if now is None else now))
    target = out or _default(root, site, stamp)
    nodes = node_names(root, site)
    missing: dict[str, str] = {}
    texts = dict(controller_texts(root, site))
    answers = _answers(ask, nodes, missing)
    for node, answer in answers.items():
        texts.update(node_texts(node, answer))
        missing.update({f"{node}/{part}": why for part, why in (answer.get("unread") or {}).items()})
    texts["missing.txt"] = "".join(f"{name}: {why}\n" for name, why in sorted(missing.items())) or "nothing\n"
    texts = redacted(texts)
    if anonymous:
        texts = _without_names(texts, nodes, answers)
    members, left_out = _bounded({name: text.encode("utf-8", "replace") for name, text in texts.items()})
    members["manifest.json"] = _manifest(site, members, left_out, anonymous)
    data = packed(f"trispark-support-{stamp}", members)
    _write(target, data)
    return Bundle(target, len(data), len(members), missing)


def node_names(root: Path, site: str) -> list[str]:
    """Nodes of the site's inventory by rank; none when it cannot be read."""
    try:
        read = yaml.safe_load((root / "inventory" / site / "hosts.yml").read_text(encoding="utf-8"))
        hosts = read["sparks"]["hosts"]
        return sorted(map(str, hosts), key=lambda name: (str((hosts[name] or {}).get("node_rank")), name))
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError):
        return []


def node_texts(node: str, answer: Mapping[str, Any]) -> dict[str, str]:
    """The files of one node from the answer of its agent's verb `support`."""
    texts: dict[str, str] = {}
    for part in ("agent", "host", "status", "containers", "files"):
        if part in answer:
            texts[f"nodes/{node}/{part}.json"] = json.dumps(answer[part], ensure_ascii=False, indent=1, sort_keys=True)
    journal = answer.get("journal") or {}
    lines = [json.dumps(entry, ensure_ascii=False, sort_keys=True) for entry in journal.get("entries") or ()]
    texts[f"nodes/{node}/journal.jsonl"] = "".join(f"{each}\n" for each in lines)
    for boot, text in (answer.get("boots") or {}).items():
        texts[f"nodes/{node}/boots/{_name(boot)}.log"] = str(text)
    for boot, text in (answer.get("running") or {}).items():
        texts[f"nodes/{node}/running/{_name(boot)}.log"] = str(text)
    for name, text in (answer.get("state") or {}).items():
        texts[f"nodes/{node}/state/{_name(name)}"] = str(text)
    return texts


def _name(text: str) -> str:
    """As one part of a path, whatever a node sent."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in text).lstrip(".") or "_"


def _answers(ask: Ask, nodes: Sequence[str], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """{node: answer} of those that gave one; why not is put into `missing`."""
    failures: Sequence[FailedEvent] = ()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="trispark-support-") as scratch:
        directory = Path(scratch)
        try:
            failures = ask(directory)
        except TrisparkError as error:
            failures = [FailedEvent("localhost", "support", str(error))]
        for path in sorted(directory.glob("*.json")):
            try:
                read = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                missing[path.stem] = f"its answer cannot be read: {error}"
                continue
            if isinstance(read, dict):
                found[path.stem] = read
    said = {failure.node: failure.message for failure in reversed(failures)}
    general = said.get("localhost", "no answer")
    for node in nodes:
        if node not in found:
            missing.setdefault(node, said.get(node, general))
    if not nodes:
        missing["nodes"] = "the site's hosts.yml names none"
    return found


def _without_names(
    texts: Mapping[str, str], nodes: Sequence[str], answers: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    names = {platform.node(), platform.node().partition(".")[0], getpass.getuser()} - {"root", "localhost"}
    names |= {str((answer.get("host") or {}).get("hostname") or "") for answer in answers.values()}
    hide = Anonymous(nodes, filter(None, names))
    return {hide.text(name): hide.text(text) for name, text in sorted(texts.items())}


def _bounded(members: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, int]]:
    """What fits into the bundle, the smallest first, and the sizes of what does not."""
    kept: dict[str, bytes] = {}
    left_out: dict[str, int] = {}
    total = 0
    for name, data in sorted(members.items(), key=lambda item: (len(item[1]), item[0])):
        total += len(data)
        if total <= MOST_BYTES:
            kept[name] = data
        else:
            left_out[name] = len(data)
    return kept, left_out


def _manifest(site: str, members: Mapping[str, bytes], left_out: Mapping[str, int], anonymous: bool) -> bytes:
    content = {
        "schema_version": SCHEMA_VERSION,
        "site": site,
        "anonymous": anonymous,
        "left_out": dict(left_out),
        "files": {name: {"bytes": len(data), "sha256": sha256(data).hexdigest()} for name, data in members.items()},
    }
    return (json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _default(root: Path, site: str, stamp: str) -> Path:
    from trispark.host.state import private_directory, state_directory

    return private_directory(private_directory(state_directory(root) / site) / "support") / f"{stamp}.tar.gz"


def _write(target: Path, data: bytes) -> None:
    try:
        write_new(target, data)
    except OSError as error:
        taken = isinstance(error, FileExistsError)
        raise TrisparkError(
            "TS-SUPPORT-FILE",
            "the support bundle cannot be written",
            where=str(target),
            expected="a name that is free in a directory that this user can write",
            observed="a file is there already" if taken else error.strerror or str(error),
            remedy="give another place with --out",
        ) from None

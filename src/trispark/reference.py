"""Writes docs/errors.md: every error id that the tree can show, with its meaning and remedy as the sources say them.

    python -m trispark.reference          print it
    python -m trispark.reference --write  replace docs/errors.md; a test compares the two

The sources are read, not run: an id counts where it is given to an error together with its text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ID: Final = re.compile(r"TS-[A-Z0-9]+(?:-[A-Z0-9]+)+")
LINE: Final = re.compile(rf"({ID.pattern}): ([^\n]*)")
PYTHON: Final = ("src", "plugins", "lab/trispark_lab", "adapters")
TEXT: Final = ("roles/*/tasks/*.yml", "playbooks/*.yml", "trispark")
PAGE: Final = "docs/errors.md"
SELF: Final = Path(__file__).name

HEAD: Final = """# Error ids

Every failure is one line with one of these ids, after the nodes that say so.
Its form: `ID: what; where: …; expected: …; observed: …; do: …`.
Ids are stable, texts are not. `…` stands for what the line fills in.
Written from the sources by `python -m trispark.reference --write`; a test compares the two.
"""

AREAS: Final = {
    "ADAPTER": "Python that is mounted into the engine",
    "ADAPTERS": "the builds of the engine that adapters bind to",
    "ADOPT": "taking over an engine that was started by hand",
    "AGENT": "the node agent and its requests",
    "BACKUP": "backups of the nodes' state",
    "BASELINE": "the site's promoted baseline",
    "BENCH": "the load client",
    "BOOT": "a boot",
    "BUDGET": "the memory of a node",
    "BUILD": "making the agent",
    "CAMPAIGN": "a campaign and its list",
    "CANONICAL": "the hashed form of a configuration",
    "CATALOG": "experiments/",
    "CHECKPOINT": "the lab's checkpoint",
    "CLI": "the command line",
    "CONFIRM": "the confirmation of what was promoted",
    "DEMO": "the demo",
    "DOCKER": "this machine's Docker Engine",
    "DRAIN": "running requests of production",
    "ENGINE": "the lab's engine while it starts",
    "ENGRAM": "packed shards",
    "ENV": "variables of the engine",
    "FEATURE": "features and stages",
    "GATE": "the gates of a boot",
    "HOST": "this machine",
    "IMAGES": "images: what they are made of, how they are built, what runs",
    "LAB": "the lab",
    "LOCK": "the fleet lock: one command at a time on the nodes",
    "NATIVE": "building the native libraries",
    "PLAN": "planning a boot",
    "PLAY": "running a playbook",
    "PREFLIGHT": "the nodes before anything is changed",
    "PROMOTE": "making a verdict the baseline",
    "PROVENANCE": "where an image comes from, and who signed that",
    "PYTEST": "the tests",
    "PYTHON": "the interpreter",
    "RECORD": "records and their chain",
    "RENDER": "files made for a node",
    "RESOLVED": "a stored configuration",
    "RESTORE": "a node gets the state of a backup",
    "ROLLBACK": "the way back",
    "ROUNDS": "in-boot rounds",
    "SETUP": ".venv",
    "SHARE": "how the workers see the checkpoint",
    "SITE": "inventory/",
    "STAGE": "stages",
    "STATS": "simulations and campaigns of others",
    "STORE": "the Engram row store of the engine",
    "SUPPORT": "the support bundle",
    "TIME": "windows, deadlines and time zones",
    "TRUTH": "the truth test of the load client",
    "TRIAL": "a trial",
    "UNINSTALL": "removing what trispark keeps on a node",
    "VERDICT": "the boots of a verdict",
    "VERIFY": "a look at what runs",
    "WALK": "the boots of a trial",
    "WORKLOAD": "prompts",
    "YAML": "reading YAML",
}

WRITTEN: Final = {
    "TS-ADAPTER-START": (
        "the adapters were not installed, the engine does not start",
        "read the kept log of that rank",
    ),
    "TS-ADAPTERS-LOCKED": ("another setup of the engine's environment is still running", "wait for it or end it"),
    "TS-ADAPTERS-MATRIX": (
        "an adapter finds something else in a build than the matrix says; the line names the cell",
        "find out what changed, then correct the adapter, or its row in experiments/engine_builds.yml",
    ),
    "TS-ADAPTERS-PACKAGES": (
        "packages of the engine's modules could not be had, so tests on them are skipped",
        "check the network and pip's configuration",
    ),
    "TS-ADAPTERS-TORCH": (
        "torch's CPU build could not be had, so tests on the engine's modules are skipped",
        "tell pip where it lies, or do without",
    ),
    "TS-AGENT-DOCKER": ("the node's Docker Engine does not answer, or refuses", ""),
    "TS-AGENT-FAILED": ("the agent failed and gave no error of its own", "call the verb by hand on the node"),
    "TS-AGENT-OS": ("the node's operating system refused a step", "mend what the line names; the journal has the step"),
    "TS-AGENT-REQUEST": ("the caller asked for something that is no request of this verb", ""),
    "TS-AGENT-SPACE": ("a file system of the node is full", "make room there and repeat the verb"),
    "TS-BENCH-INCOMPLETE": (
        "the load client gave no result, or a planned request failed, is missing, has other tokens than were asked "
        "for, or no decode rate; the boot is invalid",
        "read the kept logs, boot again",
    ),
    "TS-BENCH-INPUT": ("the load client's input cannot be read", "run the stage again"),
    "TS-BENCH-RUN": ("the load client failed", "read the engine's kept log"),
    "TS-BOOT-NODE": (
        "a node did not report the whole way of a boot; the line names the first part that is missing",
        "see ./trispark status, bring the node back, boot again",
    ),
    "TS-BOOT-TASK": ("a task of the boot failed without an id of its own", "the line has the task's message"),
    "TS-CAMPAIGN-BUSY": ("another campaign of this checkout is still running", "wait for it or end it, then try again"),
    "TS-CAMPAIGN-SCHEMA": ("the list of a campaign has a wrong shape", "correct the place that the line names"),
    "TS-CATALOG-SCHEMA": ("a file of the catalog has a wrong shape", "correct the place that the line names"),
    "TS-DEMO-UNVERIFIED": ("the playbooks ended, but not everything was verified", "read the events of the runs"),
    "TS-ENGINE-FLAG": ("the command line of the lab's engine cannot be used", ""),
    "TS-ENGINE-SAMPLED-CAP": (
        "a sampled request came while DSV41_VERIFY_CAP goes by confidence and DSV41_BLOCK_VERIFY is off",
        "send temperature 0, or start the engine with block verification",
    ),
    "TS-ENGRAM-CONTENT": (
        "a shard under our name does not hold the checkpoint's rows; no boot serves from it, an engine that runs may",
        "./trispark play stop if an engine runs, find out why, then ./trispark engram pack --repair and boot again",
    ),
    "TS-ENGRAM-HEADER": (
        "a shard under our name is of another layer, rank, size or format; "
        "no boot serves from it, an engine that runs may",
        "./trispark play stop if an engine runs, find out why, then ./trispark engram pack --repair and boot again",
    ),
    "TS-ENGRAM-HOLES": (
        "a shard has ranges that were never written and would be read as rows of zeros; "
        "no boot serves from it, an engine that runs may",
        "find out why (a copy is made with cp --sparse=never), then ./trispark engram pack --repair",
    ),
    "TS-ENGRAM-LAYOUT": (
        "a shard is of the other ownership layout than the site declares; "
        "no boot serves from it, an engine that runs may",
        "correct site_engram_layout to what the engine image has, or ./trispark engram pack --repair",
    ),
    "TS-ENGRAM-MANIFEST": (
        "a shard's manifest is damaged, or disagrees with file, checkpoint or site; "
        "no boot serves from it, an engine that runs may",
        "./trispark engram verify --level deep says which is wrong, then ./trispark engram pack --repair",
    ),
    "TS-ENGRAM-MISSING": ("a shard of this rank is not there", "./trispark engram pack"),
    "TS-ENGRAM-PARTIAL": ("an interrupted pack left its temporary file", "./trispark engram pack, it packs again"),
    "TS-ENGRAM-SIZE": (
        "a shard under our name is too short or too long; no boot serves from it, an engine that runs may",
        "./trispark play stop if an engine runs, find out why, then ./trispark engram pack --repair and boot again",
    ),
    "TS-ENGRAM-UNPROVEN": (
        "a shard has no manifest: it is of another tool, or packing was cut off just before",
        "./trispark engram pack hashes it and gives it one",
    ),
    "TS-ENV-RANGE": ("a value is outside of what the allowlist gives", "choose a value that it allows"),
    "TS-ENV-TYPE": ("a value is not written as the allowlist declares it", "write it as the line shows"),
    "TS-ENV-VALUE": ("a value is empty or holds something that cannot be delivered", "correct it in the place named"),
    "TS-IMAGES-BUSY": ("another lock --update of this checkout is still running", "wait for it or end it"),
    "TS-IMAGES-FETCHING": ("another fetch of wheels of this checkout is still running", "wait for it or end it"),
    "TS-IMAGES-OVERSTATED": (
        "an image is called available while something that it is made of has no hash",
        "lock what the line names, or set available: false with the reason",
    ),
    "TS-IMAGES-SCHEMA": (
        "Dockerfiles/images.yml or its lock has a wrong shape",
        "correct the declaration; restore the lock from git, it is written by lock --update alone",
    ),
    "TS-LAB-BOOTSTRAP": ("mmdebstrap could not make a base", "check the network and apt's sources, then try again"),
    "TS-LAB-CHECKPOINT": ("the lab's checkpoint could not be made", "try again; the line has the maker's message"),
    "TS-LAB-KEYS": (
        "ssh-keygen did not make a key of the lab",
        "mend what the line shows of ssh-keygen, then ./trispark lab up again",
    ),
    "TS-LAB-PACKAGES": (
        "the engine's locked packages could not be fetched",
        "check the network and pip's configuration",
    ),
    "TS-ROLLBACK-TARGET": ("no generation that the nodes hold is what was asked for", ""),
    "TS-SETUP-FILES": ("a file of the checkout or of .venv cannot be written or read", "mend what the line names"),
    "TS-SETUP-LOCKED": ("another setup of this checkout is still running", "wait for it or end it, then try again"),
    "TS-SITE-SCHEMA": ("a file of the site has a wrong shape", "correct the place that the line names"),
    "TS-WALK-BUSY": ("another trial of this checkout is still running", "wait for it or end it, then try again"),
    "TS-WORKLOAD-SCHEMA": ("a file of prompts has a wrong shape", "correct the place that the line names"),
}
"""For ids whose text is put together when the program runs."""


@dataclass
class Entry:
    """What the sources say of one id; several places may raise it."""

    whats: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def add(self, what: str, remedy: str) -> None:
        for text, known in ((what, self.whats), (remedy, self.remedies)):
            if text and text not in known:
                known.append(text)


def collect(root: Path) -> dict[str, Entry]:
    """{id: entry} of the tree at `root`, every id that occurs in a source; one without a text has no `whats`."""
    found: dict[str, Entry] = {}
    for path in _files(root):
        text = path.read_text(encoding="utf-8")
        for name in ID.findall(text):
            found.setdefault(name, Entry())
        if path.suffix == ".py":
            for name, what, remedy in _python(ast.parse(text)):
                found[name].add(what, remedy)
        else:
            texts = _strings(yaml.safe_load(text)) if path.suffix == ".yml" else text.splitlines()
            for name, what, remedy in (entry for one in texts for entry in _lines(one)):
                found[name].add(what, remedy)
    for name, (what, remedy) in WRITTEN.items():
        if name in found:
            found[name] = Entry([what], [remedy] if remedy else found[name].remedies)
    return found


def page(root: Path) -> str:
    """The text of docs/errors.md."""
    entries = collect(root)
    parts = [HEAD]
    for area in sorted({name.split("-")[1] for name in entries}):
        parts.append(f"\n## {area}: {AREAS.get(area, area.lower())}\n\n| id | means | do |\n|---|---|---|\n")
        for name in sorted(entries):
            if name.split("-")[1] == area:
                entry = entries[name]
                cells = (f"`{name}`", "; or ".join(entry.whats), "; or ".join(entry.remedies) or "as the line says")
                parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def _files(root: Path) -> list[Path]:
    python = [path for part in PYTHON for path in (root / part).rglob("*.py") if path.name != SELF]
    return sorted([*python, *(path for pattern in TEXT for path in root.glob(pattern))])


def _python(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(id, what, remedy) of calls `f("TS-…", "what", …)`, of dictionaries with `id`, and of texts `TS-…: what; …`."""
    constants = _constants(tree)
    silent = {id(node) for node in _no_texts(tree)}
    for node in ast.walk(tree):
        if id(node) in silent:
            continue
        if isinstance(node, ast.Call):
            named = {word.arg: word.value for word in node.keywords if word.arg}
            given = list(node.args)
            name = _identifier(given[0] if given else named.get("id"), constants)
            if name:
                what = given[1] if len(given) > 1 else named.get("what", named.get("problem"))
                remedy = given[5] if len(given) > 5 else named.get("remedy")
                yield name, _text(what, constants), _text(remedy, constants)
        elif isinstance(node, ast.Dict):
            pairs = {
                key.value: value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            name = _identifier(pairs.get("id"), constants)
            if name:
                yield name, _text(pairs.get("what"), constants), _text(pairs.get("remedy"), constants)
        elif isinstance(node, ast.JoinedStr | ast.Constant):
            yield from _lines(_text(node, constants))


def _no_texts(tree: ast.AST) -> Iterator[ast.AST]:
    """Literals that are no texts of an error by themselves: descriptions in sources, and the parts of an f-string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield from node.values


def _strings(value: Any) -> Iterator[str]:
    """All texts of a YAML document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _constants(tree: ast.AST) -> dict[str, ast.expr]:
    """Module constants such as `READ_LOG = "read the log"`, so that a remedy given by name is shown."""
    body = tree.body if isinstance(tree, ast.Module) else []
    found: dict[str, ast.expr] = {}
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            found[statement.target.id] = statement.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = statement.value
    return found


def _identifier(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    text = _text(node, constants) if node is not None else ""
    return text if ID.fullmatch(text) else ""


def _text(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    """A literal as a reader sees it; `…` for whatever is filled in when the program runs."""
    if isinstance(node, ast.Constant):
        return " ".join(node.value.split()) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return " ".join("".join(_text_part(part) for part in node.values).split())
    if isinstance(node, ast.IfExp):
        either = [text for text in (_text(node.body, constants), _text(node.orelse, constants)) if text]
        return "; or ".join(either)
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], {})
    return ""


def _text_part(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Of a finished line `TS-…: what; …; do: remedy`, or `TS-…: what [where: …] …`."""
    for match in LINE.finditer(" ".join(text.split())):
        rest = re.sub(r"\{\{.*?\}\}|\$\{?\w+\}?", "…", match[2]).rstrip("\" '")
        what = re.split(r"; (?:where|expected|observed|do):| \[where:|\" \d", rest)[0].strip("\"' ")
        remedy = re.search(r"; do: (.*)$", rest)
        yield match[1], what, remedy[1] if remedy else ""


def main(arguments: list[str]) -> int:
    """Exit status 0."""
    root = Path(__file__).resolve().parents[2]
    text = page(root)
    if arguments == ["--write"]:
        (root / PAGE).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

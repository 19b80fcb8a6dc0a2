"""Runs inside an image while it is built: what the image configures, holds and can import. Any finding ends the build.

    python image_check.py EXPECTED.json RESULT.json

EXPECTED.json holds

    variables, prefixes   names, and beginnings of names, that no image may set; those in `says_itself` say what it is
    absent                paths that must not be there
    not_importable        modules that come by mount
    modules, packages     names that must import, {distribution: version} that must be installed

It stands alone and needs nothing but Python 3.10, as it runs in images of others.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def findings(expected: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each thing that is not as expected; nothing is imported once something else was found."""
    found = [*configured(expected, environment), *_present(expected), *_packages(expected.get("packages", {}))]
    yield from found
    if not found:
        yield from _imports(expected.get("modules", []))


def configured(expected: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """A base's `DSV41_CACHE_GIB=16` is seen here: a RUN step has the environment of the image."""
    names, prefixes = set(expected.get("variables", [])), tuple(expected.get("prefixes", []))
    for name in sorted(set(environment) - set(expected.get("says_itself", []))):
        if name in names or name.startswith(prefixes):
            yield f"the image sets {name}={environment[name]}; an experiment's variable comes from the launcher alone"


def _present(expected: Mapping[str, Any]) -> Iterator[str]:
    for path in expected.get("absent", []):
        if os.path.lexists(path):
            yield f"{path} is there"
    for name in expected.get("not_importable", []):
        if importlib.util.find_spec(name) is not None:
            yield f"the image holds {name}, which comes by mount"


def _packages(wanted: Mapping[str, str]) -> Iterator[str]:
    for name, version in sorted(wanted.items()):
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != version:
            yield f"{name} is {installed}, {version} is wanted"


def _imports(modules: list[str]) -> Iterator[str]:
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # one that ends the program would end the look, with status 0
            yield f"{name} cannot be imported: {type(error).__name__}: {error}"


def main(arguments: list[str]) -> int:
    """0 when nothing was found; RESULT.json says what was looked at, and is written only then."""
    source, target = (Path(argument) for argument in arguments)
    expected = json.loads(source.read_text(encoding="utf-8"))
    found = list(findings(expected, os.environ))
    for line in found:
        print(f"image check: {line}", file=sys.stderr)
    if found:
        return 1
    shown = {key: expected.get(key, []) for key in ("absent", "modules", "packages")}
    target.write_text(json.dumps(shown, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Real modules of the engine in a test: what an installer replaces is put back afterwards."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

DSPARK = "sglang.srt.speculative.dspark_components"
ACCEPT = "sglang.kernels.ops.speculative.dspark.dspark_accept"


def module(name: str) -> ModuleType:
    """A module of the engine; the test is skipped, with the reason, where there is no engine."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("sglang", reason="sglang is not on the path")
    return importlib.import_module(name)


def keep(monkeypatch: pytest.MonkeyPatch, owner: Any, *paths: str) -> None:
    """Put `paths` below `owner` back at the end of the test, whatever replaces them."""
    for path in paths:
        *parents, name = path.split(".")
        holder = owner
        for parent in parents:
            holder = getattr(holder, parent)
        if hasattr(holder, name):
            monkeypatch.setattr(holder, name, inspect.getattr_static(holder, name))


def no_sync() -> Any:
    """A SpecTpSync of one rank."""
    return SimpleNamespace(sync=lambda site, values: values, enabled=lambda site: False)


def shows(text: str, evidence: str, **values: object) -> bool:
    """Whether a log holds the evidence of that id; values stand for the placeholders of its pattern."""
    path = Path(__file__).resolve().parents[2] / "experiments/evidence.yml"
    pattern = str(yaml.safe_load(path.read_text(encoding="utf-8"))["evidence"][evidence]["pattern"])
    filled = re.sub(r"<([A-Z0-9_+]+)>", lambda found: re.escape(str(values[found[1]])), pattern)
    return re.search(filled, text) is not None

"""Writes the published JSON Schemas (2020-12): `python -m trispark.schema [DIRECTORY]`; a test compares them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from trispark.allowlist import AllowlistFile
from trispark.catalog import BaselineFile, EnginesFile, EvidenceFile, ExclusionsFile, FeaturesFile, StagesFile
from trispark.engine_api.model import BuildsFile, InterfacesFile
from trispark.memory_model import MemoryFile
from trispark.quality.model import QualityFile
from trispark.record_model import Record
from trispark.review_map import ReviewMapFile
from trispark.shard_manifest import ShardManifest

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "record": (Record, "trispark record of a boot or a trial"),
    "env_allowlist": (AllowlistFile, "experiments/env_allowlist.yml"),
    "baseline": (BaselineFile, "experiments/baseline.yml"),
    "features": (FeaturesFile, "experiments/features.yml"),
    "stages": (StagesFile, "experiments/stages.yml"),
    "evidence": (EvidenceFile, "experiments/evidence.yml"),
    "exclusions": (ExclusionsFile, "experiments/exclusions.yml"),
    "engines": (EnginesFile, "experiments/engines.yml"),
    "engine_builds": (BuildsFile, "experiments/engine_builds.yml"),
    "engine_interfaces": (InterfacesFile, "experiments/engine_interfaces.yml"),
    "quality": (QualityFile, "experiments/quality.yml"),
    "memory": (MemoryFile, "experiments/memory.yml"),
    "shard_manifest": (ShardManifest, "<shard>.manifest.json beside a packed shard"),
    "review_map": (ReviewMapFile, "experiments/review_map.yml"),
}


def schema_texts() -> dict[str, str]:
    """{file name: text} of every published schema."""
    texts = {}
    for name, (model, title) in SCHEMAS.items():
        body: dict[str, Any] = model.model_json_schema(mode="validation")
        schema = {"$schema": DIALECT, "$id": f"trispark/{name}.schema.json", **body, "title": title}
        texts[f"{name}.schema.json"] = json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return texts


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0]) if arguments else Path("schemas")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

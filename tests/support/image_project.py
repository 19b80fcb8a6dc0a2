"""A checkout with one image to be built from a context, of inputs that are here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from file_index import FileIndex

from trispark.images.build_context import Context, Request, make_context
from trispark.images.declaration import load_declaration
from trispark.images.lock_file import load_lock
from trispark.images.lock_update import update
from trispark.images.package_index import PackageIndex, UrllibHttp
from trispark.images.wheel_cache import WheelCache

ROOT = Path(__file__).resolve().parents[2]
HTTP = UrllibHttp(10)
DIGEST = "sha256:" + "d" * 64
WHEEL = "tiny_kernel-1.2-py3-none-any.whl"


class Project:
    """A tree with the shipped Dockerfile of the canary and inputs of its own."""

    def __init__(self, root: Path, index: FileIndex) -> None:
        self.root, self.index = root, index
        for name in ("Dockerfiles/canary/Dockerfile", "src/trispark/images/image_check.py"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
        (root / "experiments").mkdir()
        for name in ("experiments/env_allowlist.yml", "experiments/engines.yml"):
            (root / name).symlink_to(ROOT / name)
        (root / "given/sglang").mkdir(parents=True)
        (root / "given/sglang/__init__.py").write_text("")
        (root / "given/overlay.py").write_text("x = 1\n")
        self.inputs: dict[str, dict[str, Any]] = {
            "base": {"kind": "image", "repository": "r.example/a", "index": DIGEST, "digest": DIGEST,
                     "architecture": "arm64"},
            "kernel": {"kind": "wheel", "project": "tiny-kernel", "version": "1.2", "architecture": "any"},
            "sglang-f80c91a4b": {"kind": "tree", "source": "s", "commit": "0" * 40, "directory": "python"},
            "sm120-mla-overlay": {"kind": "file", "file": "flash_mla_sm120.py"},
        }  # fmt: skip
        self.image: dict[str, Any] = {
            "title": "a 'title' with quotes",
            "dockerfile": "canary/Dockerfile",
            "serves": "sglang",
            "user": "root",
            "root_because": "x",
            "arguments": {"PYTHON": "/p/python3", "ENGINE_SOURCE": "/s"},
            "checks": {"modules": ["sglang"], "packages": {"tiny-kernel": "1.2"}},
        }
        self.variant: dict[str, Any] = {
            "base": "base",
            "inputs": sorted(set(self.inputs) - {"base"}),
            "available": True,
        }
        self.declare()

    def declare(self) -> None:
        images = {"canary": self.image | {"variants": {"arm64": self.variant}}}
        data = {"schema_version": 1, "inputs": self.inputs, "images": images}
        (self.root / "Dockerfiles/images.yml").write_text(yaml.safe_dump(data))

    def lock(self, *names: str, **given: str) -> None:
        from trispark.images.lock_check import Sources
        from trispark.images.system_packages import SystemPackages

        pip = PackageIndex(self.index.address, HTTP)
        sources = Sources(self.root, self.cache, SystemPackages(), pip, None)
        for name in names:
            path = {"sglang-f80c91a4b": "given", "sm120-mla-overlay": "given/overlay.py"}.get(name)
            update(self.root, load_declaration(self.root), name, sources, None if path is None else self.root / path)

    @property
    def cache(self) -> WheelCache:
        return WheelCache(self.root, lambda _: None)

    def make(self, out: str, *, fetch: bool = True, **changed: Any) -> Context:
        request = Request("canary", "arm64", self.root / out, "1.0", "abc")
        return make_context(
            self.root,
            load_declaration(self.root),
            load_lock(self.root),
            replace(request, **changed),
            self.cache,
            PackageIndex(self.index.address, HTTP) if fetch else None,
        )

"""For which launch kernel tactics were tuned: one hash over arguments, variables and versions. No engine needed.

Not in it: what is volatile (it changes no tuned shape), and what names the rank or the boot. Variables that differ by
node count for the node itself, not for what all ranks must agree on. Facts: field 3.8; the engine's sources and the
versions of the kernels, by which an image is known, are part of this one, which the fingerprint of the field lacks.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

PREFIXES: Final = ("SGLANG_", "DSV41_", "SPARK_", "B12X_", "NCCL_")
VOLATILE: Final = frozenset(
    {
        "DSV41_AUTOTUNE_KEEP",
        "DSV41_BLOCK_VERIFY",
        "DSV41_DRAFT_HEAD_FP8",
        "DSV41_DRAFT_TAU",
        "DSV41_ENGRAM_PREFETCH",
        "DSV41_ENGRAM_PREFETCH_CHECK",
        "DSV41_FOLDED_FENCE",
        "DSV41_PADDED_ATTENTION_SKIP",  # leaves nothing out while kernels are timed
        "DSV41_VERIFY_CAP",
        "DSV41_VERIFY_CAP_MIN",
        "DSV41_WO_A_W8_DRAFT",
        "SGLANG_RUN_ID",
    }
)
BY_NODE: Final = frozenset({"NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"})
"""Variables of a rank's own place in the fabric."""
BY_BOOT: Final = frozenset({"--node-rank", "--dist-init-addr", "--host", "--port"})
"""Options, each with one value, that name the rank or the boot."""
SECRET: Final = frozenset({"--api-key", "--admin-api-key"})
PACKAGES: Final = (
    "sglang",
    "torch",
    "triton",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "sglang-kernel",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "nvidia-cutlass-dsl",
)
NAME_LENGTH: Final = 16


@dataclass(frozen=True)
class Launch:
    """`common` is the same on all ranks of a launch, `own` also holds what differs by node. Empty: not known."""

    common: str
    own: str

    @property
    def known(self) -> bool:
        """An unknown launch equals none, not even itself."""
        return bool(self.common) and bool(self.own)

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.common[:NAME_LENGTH]

    def matches(self, sidecar: str) -> bool:
        """Whether a sidecar says that its cache is of this launch."""
        return self.known and bool(sidecar) and sidecar == self.own


UNKNOWN: Final = Launch("", "")


def arguments(argv: Sequence[str]) -> list[str]:
    """The command without its program, without options that name the rank or the boot, and without secrets."""
    kept: list[str] = []
    rest = iter(argv[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in BY_BOOT | SECRET:
            if not equals:
                next(rest, None)
            continue
        kept.append(word)
    return kept


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those with a controlled prefix that are not volatile."""
    return {name: value for name, value in environ.items() if name.startswith(PREFIXES) and name not in VOLATILE}


def versions(version_of: Callable[[str], str] = metadata.version) -> dict[str, str]:
    """Installed versions of what brings kernels; "absent" where one is not there."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version_of(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def sources(package: Path) -> str:
    """sha256 over the paths and contents of the Python files of `package`: images of one version may hold others, as
    those before the releases did, which called themselves 0.0.0."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def launch_of(argv: Sequence[str], environ: Mapping[str, str], packages: Mapping[str, str]) -> Launch:
    """UNKNOWN where there are no arguments or no engine: then there is nothing to recognise a launch by."""
    words = arguments(argv)
    if not words or packages.get("sglang", "absent") == "absent":
        return UNKNOWN
    chosen = variables(environ)
    common = {name: value for name, value in chosen.items() if name not in BY_NODE}
    return Launch(_hash(words, common, packages), _hash(words, chosen, packages))


def _hash(words: Sequence[str], chosen: Mapping[str, str], packages: Mapping[str, str]) -> str:
    # Words keep their order: a later option wins over an earlier one.
    document = {"argv": list(words), "env": dict(chosen), "packages": dict(packages)}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

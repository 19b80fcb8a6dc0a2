"""Stand-ins for packages of the engine that a plain GPU machine lacks, so that its own modules can be imported.

With a GPU in sight SGLang's modules import flashinfer, sgl_kernel and deep_gemm at their top, and a few packages of its
front end. `install()` answers for those that are absent: whatever is asked of them is a class that takes everything
and does nothing. Nothing of the kernels under test comes from them; `forget_softmax` takes the one function away that
the acceptance would call (source: engine facts 7.4).

Beside torch, triton and transformers, the machine needs the unpacked wheel of sglang and msgspec on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

KERNELS = ("flashinfer", "sgl_kernel", "deep_gemm")
FRONT_END = (
    "IPython",
    "compressed_tensors",
    "dill",
    "fastapi",
    "gguf",
    "loguru",
    "openai",
    "orjson",
    "partial_json_parser",
    "pybase64",
    "pydantic",
    "setproctitle",
    "starlette",
    "torchvision",
    "uvicorn",
    "zmq",
)


class _Anything(type):
    """A class any attribute of which is another such class; what is derived from it may be given any keyword."""

    def __new__(cls, name: str, bases: tuple[Any, ...], body: dict[str, Any], **kwargs: object) -> Any:
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name: str, bases: tuple[Any, ...], body: dict[str, Any], **kwargs: object) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def anything(name: str) -> Any:
    """A class that takes every argument; its instances are called and asked in vain."""

    def take(self: Any, *args: Any, **kwargs: Any) -> None: ...

    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self  # also as a decorator

    def ask(self: Any, asked: str) -> Any:
        if asked.startswith("__"):
            raise AttributeError(asked)
        return anything(asked)()

    return _Anything(name, (), {"__init__": take, "__call__": give, "__getattr__": ask})


class Stub(ModuleType):
    """A package whose every attribute is a stand-in."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)


class StubFinder(MetaPathFinder, Loader):
    """Answers for the absent packages and everything below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def install() -> list[str]:
    """Put the finder last, for the names that nothing else answers for; those names."""
    absent = [name for name in (*KERNELS, *FRONT_END) if importlib.util.find_spec(name) is None]
    sys.meta_path.append(StubFinder(absent))
    return absent


def forget_softmax(accept: ModuleType) -> None:
    """Let SoftmaxTemp of dspark_accept take the engine's own kernel where flashinfer's is a stand-in."""
    if isinstance(getattr(accept, "_flashinfer_softmax", None), _Anything):
        accept._flashinfer_softmax = None  # type: ignore[attr-defined]

"""Names of torchvision.transforms.v2.functional; none of them is called."""

from typing import Any, NoReturn


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"this is a stand-in for torchvision, without {name}")

    return absent

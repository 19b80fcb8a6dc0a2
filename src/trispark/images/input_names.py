"""Names that `images lock` takes: inputs, and images, which stand for what they are made of."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from trispark.errors import TrisparkError
from trispark.images.declaration import DECLARATION, Declaration


def inputs_of(declaration: Declaration, image: str) -> list[str]:
    """What an image is made of, on all its architectures, each once; the bases first."""
    variants = declaration.images[image].variants.values()
    return list(
        dict.fromkeys([*(each.base for each in variants), *(name for each in variants for name in each.inputs)])
    )


def expanded(declaration: Declaration, known: Collection[str], names: Sequence[str]) -> Mapping[str, list[str]]:
    """{name as given: inputs}. What is an input and an image is the input. `known`: names of inputs and of locked
    entries. Raises TS-IMAGES-NAME."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name in known:
            found[name] = [name]
        elif name in declaration.images:
            found[name] = inputs_of(declaration, name)
        else:
            raise unknown(declaration, known, name)
    return found


def require_input(declaration: Declaration, known: Collection[str], name: str) -> None:
    """Raises TS-IMAGES-NAME, for an image with the inputs that it has."""
    if name in known:
        return
    if name not in declaration.images:
        raise unknown(declaration, known, name)
    raise TrisparkError(
        "TS-IMAGES-NAME",
        "this is an image, and inputs are locked one by one",
        where=DECLARATION,
        expected=f"an input of it: {', '.join(inputs_of(declaration, name))}",
        observed=name,
        remedy="name one of its inputs",
    )


def unknown(declaration: Declaration, known: Collection[str], name: str) -> TrisparkError:
    """The refusal of a name that is neither, with what is near it."""
    near = difflib.get_close_matches(name, sorted({*known, *declaration.images}), n=3)
    images = f"an image ({', '.join(declaration.images)}), or an input that ./trispark images lock --check shows"
    return TrisparkError(
        "TS-IMAGES-NAME",
        "there is no such input or image",
        where=DECLARATION,
        expected=f"for example {', '.join(near)}" if near else images,
        observed=name[:80],
        remedy="name one of them, or declare it there",
    )

"""How a running container differs from the spec that it was started from: image, environment, command, mounts.

Each difference is {"what", "expected", "observed"}, texts without secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trispark_node import engine_state
from trispark_node.containers import engine_config, identity
from trispark_node.docker_client import Container, Image, MountPoint, split_env
from trispark_node.node import Node
from trispark_node.redaction import Redactor
from trispark_node.spec import Spec

ABSENT = "not set"
MAX_TEXT = 160
"""Characters of a value that are shown."""


def item(what: str, expected: str, observed: str) -> dict[str, str]:
    """One difference; long values are cut."""
    return {"what": what, "expected": _cut(expected), "observed": _cut(observed)}


def differences(node: Node, container: Container, spec: Spec, image: Image | None) -> list[dict[str, str]]:
    """Of a container of ours against the spec of its generation. `image`: what it runs, None when it was removed."""
    who = identity(container)
    if who is None:
        return []
    config = engine_config(spec, engine_state.places(node, spec), who)
    wanted = split_env(config["Env"])
    mounts = [MountPoint(each["Source"], each["Target"], each["ReadOnly"]) for each in config["HostConfig"]["Mounts"]]
    return [
        *_image(container, spec, image),
        *_environment(container, wanted, image),
        *_command(container, tuple(config["Cmd"])),
        *_mounts(container, mounts),
    ]


def _image(container: Container, spec: Spec, image: Image | None) -> Iterator[dict[str, str]]:
    planned = spec.container.image
    digest = planned.partition("@")[2]
    if container.image_ref != planned:
        yield item("image", planned, container.image_ref)
    elif image is not None and image.digests and digest not in {each.partition("@")[2] for each in image.digests}:
        yield item("image", digest, ", ".join(image.digests))


def _environment(container: Container, wanted: Mapping[str, str], image: Image | None) -> Iterator[dict[str, str]]:
    """The image's environment overlaid by the rendered one; where the image is gone, only what was rendered."""
    full = {**image.env, **wanted} if image is not None else dict(wanted)
    names = set(full) | (set(container.env) if image is not None else set())
    shown, planned = _redacted(container.env), _redacted(full)
    for name in sorted(names):
        if full.get(name) != container.env.get(name):
            yield item(f"environment {name}", planned.get(name, ABSENT), shown.get(name, ABSENT))


def _redacted(env: Mapping[str, str]) -> dict[str, str]:
    return Redactor(env, ()).env(env)


def _command(container: Container, wanted: tuple[str, ...]) -> Iterator[dict[str, str]]:
    if container.command == wanted:
        return
    planned, observed = Redactor({}, wanted).command(wanted), Redactor({}, container.command).command(container.command)
    pairs = zip(wanted, container.command, strict=False)
    place = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(container.command)))
    after = f" after {planned[place - 1]}" if 0 < place <= len(planned) else ""
    yield item(f"command, argument {place}{after}", _word(planned, place), _word(observed, place))


def _word(words: list[str], place: int) -> str:
    return words[place] if place < len(words) else "no further argument"


def _mounts(container: Container, wanted: list[MountPoint]) -> Iterator[dict[str, str]]:
    planned = {mount.target: mount for mount in wanted}
    actual = {mount.target: mount for mount in container.mounts}
    for target in sorted(set(planned) | set(actual)):
        if planned.get(target) != actual.get(target):
            yield item(f"mount {target}", _mount(planned.get(target)), _mount(actual.get(target)))


def _mount(mount: MountPoint | None) -> str:
    if mount is None:
        return "not mounted"
    return f"{mount.source} ({'read-only' if mount.read_only else 'writable'})"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."

"""What a container of someone else is: in words without its secrets, and whole, so that it can be started again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.docker_client import Image, split_env
from trispark_node.redaction import REDACTED, TextRedactor

RANK_VARIABLE, RANK_FLAG = "NODE_RANK", "--node-rank"
SHORT_ID = 12
SECRET_WORDS = frozenset(
    ("auth", "credential", "credentials", "key", "passwd", "password", "pwd", "secret", "token")
)  # fmt: skip
"""As a whole part of a name: HF_TOKEN and --api-key are secret, --max-total-tokens and --tokenizer-path are not."""
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S+)")
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]*)[= ]+(\"[^\"]*\"|'[^']*'|\S+)")
_USERINFO = re.compile(r"://([^/\s@]+)@")
_PLACE = re.compile(r"[\w./:+-]*/[\w./:+-]*")
"""A path or a list of paths: no secret, and part of mounts and commands that a reader must see."""
LEAST_SECRET = 4
LEAST_WITHHELD = 8
"""Characters from which a value that is not shown is also hidden inside of other texts."""
OPTIONS = (
    "NetworkMode", "IpcMode", "PidMode", "Privileged", "CapAdd", "Devices", "DeviceRequests", "Ulimits", "ShmSize",
    "Memory", "RestartPolicy", "AutoRemove", "PortBindings", "Runtime",
)  # fmt: skip
"""Of the HostConfig, in a description; the start description has all of it."""

Raw = Mapping[str, Any]


def name_of(raw: Raw) -> str:
    return str(raw["Name"]).lstrip("/")


def alive(raw: Raw) -> bool:
    return raw["State"]["Status"] in ("running", "paused", "restarting")


def auto_remove(raw: Raw) -> bool:
    """Started with --rm: the Engine removes it as soon as it ends."""
    return bool(raw["HostConfig"].get("AutoRemove"))


def restart_policy(raw: Raw) -> dict[str, Any]:
    found = raw["HostConfig"].get("RestartPolicy") or {}
    return {"Name": found.get("Name") or "no", "MaximumRetryCount": int(found.get("MaximumRetryCount") or 0)}


def stop_signal(raw: Raw) -> str:
    return str(raw["Config"].get("StopSignal") or "SIGTERM")


def words(raw: Raw) -> list[str]:
    """The process as it was started: entry point, then command."""
    config = raw["Config"]
    return [str(word) for word in (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))]


def rank_of(raw: Raw) -> tuple[int | None, str]:
    """(rank, where it says so); None for a container that is no rank of a group."""
    env = split_env(raw["Config"].get("Env"))
    if env.get(RANK_VARIABLE, "").isdecimal():
        return int(env[RANK_VARIABLE]), RANK_VARIABLE
    found = re.search(rf"(?:^|\s){RANK_FLAG}[= ]([0-9]+)(?:\s|$)", " ".join(words(raw)))
    return (int(found[1]), RANK_FLAG) if found else (None, "")


def start_body(raw: Raw, image: str) -> dict[str, Any]:
    """The body of POST /containers/create that makes the same container again. As secret as its environment."""
    config = {**raw["Config"], "Image": image}
    if config.get("Hostname") == raw["Id"][:SHORT_ID]:
        del config["Hostname"]  # the Engine's own choice: the next one has another id
    host = {key: value for key, value in raw["HostConfig"].items() if key != "ContainerIDFile"}
    return {**config, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": _endpoints(raw)}}


def _endpoints(raw: Raw) -> dict[str, Any]:
    mode = str(raw["HostConfig"].get("NetworkMode") or "default")
    if mode in ("host", "none", "default", "bridge") or mode.startswith("container:"):
        return {}
    found = (raw.get("NetworkSettings") or {}).get("Networks") or {}
    return {
        name: {
            "Aliases": [alias for alias in (end.get("Aliases") or ()) if alias != raw["Id"][:SHORT_ID]],
            "DriverOpts": end.get("DriverOpts"),
            "IPAMConfig": end.get("IPAMConfig"),
            "Links": end.get("Links"),
        }
        for name, end in found.items()
    }


def comparable(raw: Raw) -> dict[str, Any]:
    """What must be equal for a container to be the same one, started again. Without the restart policy, which a
    take-over sets to `no`, and without the image's name: its id counts."""
    body = start_body(raw, str(raw["Image"]))
    body["HostConfig"].pop("RestartPolicy", None)
    return body


def fingerprint(raw: Raw) -> str:
    return sha256_hex(canonical_json(comparable(raw)))


def inexact(raw: Raw) -> list[str]:
    """What a container that is made anew would lack of this one."""
    host = raw["HostConfig"]
    given = {str(bind).partition(":")[0] for bind in host.get("Binds") or ()}
    given |= {str(mount.get("Source")) for mount in host.get("Mounts") or ()}
    anonymous = [
        str(mount.get("Destination"))
        for mount in raw.get("Mounts") or ()
        if mount.get("Type") == "volume" and mount.get("Name") not in given
    ]
    found = [f"the volume without a name at {target}" for target in anonymous]
    if len(_endpoints(raw)) > 1:
        found.append("its second network")
    if host.get("Links"):
        found.append("its links to other containers")
    return found


def bind_sources(raw: Raw) -> list[str]:
    """Paths of this node that it mounts. A missing one would be made by the Engine as an empty directory (I5)."""
    return [str(mount["Source"]) for mount in raw.get("Mounts") or () if mount.get("Type") == "bind"]


def describe(raw: Raw, image: Image | None, loggable: Iterable[str]) -> dict[str, Any]:
    """For people and records. `loggable`: names of variables whose value may be shown; of all others only the name."""
    shown = frozenset(loggable)
    env = split_env(raw["Config"].get("Env"))
    hide = TextRedactor(_hidden(raw, env, shown))
    rank, rank_from = rank_of(raw)
    state, host = raw["State"], raw["HostConfig"]
    return {
        "name": name_of(raw),
        "container_id": raw["Id"],
        "state": state["Status"],
        "started_at": state.get("StartedAt") or None,
        "image": {
            "ref": hide.text(str(raw["Config"]["Image"])),
            "id": raw["Image"],
            "digests": list(image.digests) if image is not None else [],
        },
        "rank": rank,
        "rank_from": rank_from,
        "command": _command(words(raw), hide),
        "env": {name: hide.text(value) if name in shown else None for name, value in sorted(env.items())},
        "mounts": [
            {
                "type": str(mount.get("Type")),
                "source": hide.text(str(mount.get("Name") or mount.get("Source") or "")),
                "target": hide.text(str(mount["Destination"])),
                "read_only": not mount.get("RW", False),
            }
            for mount in raw.get("Mounts") or ()
        ],
        "options": {key: _texts(host[key], hide) for key in OPTIONS if host.get(key)},
        "labels": {
            key: REDACTED if _secret(key) else hide.text(str(value))
            for key, value in sorted((raw["Config"].get("Labels") or {}).items())
        },
        "inexact": inexact(raw),
        "fingerprint": fingerprint(raw),
    }


def _command(command: Sequence[str], hide: TextRedactor) -> list[str]:
    """The word after a secret flag is hidden however short it is."""
    return [
        REDACTED if _lone_flag(before) else hide.text(word)
        for before, word in zip(["", *command], command, strict=False)
    ]


def _lone_flag(word: str) -> bool:
    return word.startswith("-") and "=" not in word and _secret(word.lstrip("-"))


def _texts(value: Any, hide: TextRedactor) -> Any:
    if isinstance(value, str):
        return hide.text(value)
    if isinstance(value, dict):
        return {key: _texts(each, hide) for key, each in value.items()}
    return [_texts(each, hide) for each in value] if isinstance(value, list) else value


def _secret(name: str) -> bool:
    return not SECRET_WORDS.isdisjoint(re.split(r"[-_.]", name.lower()))


def _hidden(raw: Raw, env: Mapping[str, str], shown: frozenset[str]) -> Iterator[str]:
    """Texts that appear nowhere in a description."""
    for name, value in env.items():
        if name in shown:
            continue
        withheld = len(value) >= LEAST_WITHHELD and _PLACE.fullmatch(value) is None
        if withheld or (_secret(name) and len(value) >= LEAST_SECRET):
            yield value
    labels = {str(key): str(value) for key, value in (raw["Config"].get("Labels") or {}).items()}
    yield from (value for name, value in labels.items() if _secret(name) and len(value) >= LEAST_SECRET)
    for secret in _in_texts([*words(raw), *labels.values(), *(env[name] for name in shown & env.keys())]):
        if len(secret) >= LEAST_SECRET and secret != REDACTED:
            yield secret


def _in_texts(texts: Sequence[str]) -> Iterator[str]:
    """Values of secret names and flags, as words of their own or inside of a script, and logins inside of addresses."""
    for text, following in zip(texts, [*texts[1:], ""], strict=True):
        if _lone_flag(text):
            yield following
        for pattern in (_ASSIGNED, _FLAG):
            yield from (match[2].strip("\"'") for match in pattern.finditer(text) if _secret(match[1]))
        yield from (match[1] for match in _USERINFO.finditer(text))

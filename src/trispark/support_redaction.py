"""Takes secrets, and on demand names and addresses, out of the texts of a support bundle.

Two passes: what looks like a secret in one text is hidden in all of them, so that a key which an engine's log repeats
without its name goes too. A name or an address gets the same stand-in everywhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

HIDDEN: Final = "<redacted>"
SSH_PATH: Final = "<ssh file>"
SHORTEST: Final = 6
"""Letters from which on a secret is hidden wherever it is; shorter ones would take ordinary words away."""

_NAME = r"[A-Za-z0-9_.-]*(?:api[_-]?key|token|passwo?r?d|passwd|passphrase|secret|credentials?|private[_-]?key)"
_VALUE = r"(?:\\\"[^\"\\\n]*\\\"|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s\"',;}\]]+)"
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>(?<![A-Za-z0-9_.-])(?:\\?[\"'])?{_NAME}(?:\\?[\"'])?\s*[=:]\s*)(?P<value>{_VALUE})"
)
"""`NAME=value`, `name: value`, `"NAME": "value"`; the name's end decides, so that `max_tokens` is none."""
_SECRET_NAME = re.compile(rf"(?i){_NAME}")
_FLAG = re.compile(
    rf"(?i)(?P<name>(?<![\w-])--[a-z-]*(?:api-key|token|password|secret)(?:\\?[\"'])?(?:=|\s*,\s*|\s+))(?P<value>\\?{_VALUE})"
)
_BEARER = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{6,})")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{12,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})"
)
_URL = re.compile(r"(?P<name>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^\s:/@\"']+:)(?P<value>[^\s@/\"']+)(?=@)")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_VAULT = re.compile(r"\$ANSIBLE_VAULT;[^\n]*(?:\n[ \t]*[0-9a-f]{20,})*")
_SSH_OPTION = re.compile(
    r"(?P<name>(?:IdentityFile|UserKnownHostsFile|ssh_private_key_file|identity_file)\\?[\"']?\s*[=: ]\s*)[^\s\"',;]+"
)
_WORD = re.compile(r"[^\s\"',;:=]+")
_SSH_PLACE = re.compile(r"/\.?ssh/")
_PLAIN: Final = frozenset({"true", "false", "null", "none", "yes", "no", HIDDEN.casefold()})
_KEPT_ADDRESSES: Final = frozenset({"0.0.0.0", "127.0.0.1", "::1", "::"})
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_HOME = re.compile(r"(?<![\w.])/home/[^/\s\"',;:]+")


def names_a_secret(name: str) -> bool:
    """Whether what has this name is a secret whatever its value: HF_TOKEN is, MAX_TOKENS is not."""
    return _SECRET_NAME.fullmatch(name) is not None


def secrets_in(texts: Iterable[str]) -> list[str]:
    """Values of what is a secret by its name or its shape, the longest first."""
    found: set[str] = set()
    for text in texts:
        for pattern in (_ASSIGNED, _FLAG, _BEARER, _URL):
            found.update(_bare(match["value"]) for match in pattern.finditer(text))
        found.update(_SHAPES.findall(text))
    kept = {value for value in found if len(value) >= SHORTEST and value.casefold() not in _PLAIN}
    # A template or a name in the place of a value is what a reader needs, and no secret.
    kept = {value for value in kept if not value.startswith(("{{", "$", "<"))}
    return sorted(kept, key=lambda value: (-len(value), value))


def _bare(value: str) -> str:
    return value.strip("\\\"'")


def redacted(texts: Mapping[str, str]) -> dict[str, str]:
    """The same texts without secrets, private keys, and the places of ssh keys."""
    secrets = secrets_in(texts.values())
    return {name: _redact(text, secrets) for name, text in texts.items()}


def _redact(text: str, secrets: list[str]) -> str:
    text = _KEY_BLOCK.sub(HIDDEN, text)
    text = _VAULT.sub(HIDDEN, text)
    for pattern in (_ASSIGNED, _FLAG, _BEARER, _URL):
        text = pattern.sub(_hide, text)
    text = _SHAPES.sub(HIDDEN, text)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _SSH_OPTION.sub(lambda match: match["name"] + SSH_PATH, text)
    return _WORD.sub(_without_ssh_file, text)


def _without_ssh_file(match: re.Match[str]) -> str:
    """A word at a time: one expression for the whole path would look from each of its slashes to its end."""
    word = match[0]
    if _SSH_PLACE.search(word) is None:
        return word
    first = min(at for at in (word.find("/"), word.find("~")) if at >= 0)
    return word[:first] + SSH_PATH


def _hide(match: re.Match[str]) -> str:
    """The name, and a stand-in between the value's own quotes; an empty value, a number or a word as it is."""
    value = match["value"]
    bare = _bare(value)
    if not bare or bare.casefold() in _PLAIN or bare.startswith(("{{", "$", "<")):
        return match[0]
    return match["name"] + value.replace(bare, HIDDEN, 1)


class Anonymous:
    """Stand-ins for names of hosts and users, and for addresses, the same in all texts of a bundle."""

    def __init__(self, nodes: Iterable[str], names: Iterable[str]) -> None:
        """`nodes` in rank order become node0, node1, ...; other `names` (hosts, users) host1, host2, ..."""
        self._names = {node: f"node{rank}" for rank, node in enumerate(nodes)}
        for name in sorted(set(names) - set(self._names)):
            if len(name) > 1:
                self._names[name] = f"host{len(self._names) + 1}"
        longest = sorted(self._names, key=lambda name: (-len(name), name))
        self._pattern = re.compile(
            r"(?<![A-Za-z0-9])(?:" + "|".join(map(re.escape, longest)) + r")(?![A-Za-z0-9])" if longest else r"(?!)"
        )
        self._addresses: dict[str, str] = {}

    def text(self, text: str) -> str:
        text = _MAC.sub(lambda match: self._address(match[0].lower(), "mac"), text)
        text = _IPV4.sub(self._ip, text)
        text = _IPV6.sub(self._ip, text)
        text = _HOME.sub("/home/user", text)
        return self._pattern.sub(lambda match: self._names[match[0]], text)

    def _ip(self, match: re.Match[str]) -> str:
        try:
            address = str(ipaddress.ip_address(match[0]))
        except ValueError:
            return match[0]
        return match[0] if address in _KEPT_ADDRESSES else self._address(address, "address")

    def _address(self, address: str, kind: str) -> str:
        return self._addresses.setdefault(address, f"{kind}{len(self._addresses) + 1}")

"""Keeps secrets on the node: values of named variables and of --api-key never appear in an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

REDACTED = "<redacted>"
_FLAGS = ("--api-key", "--admin-api-key")
SECRET_NAMES = ("API_KEY", "HF_TOKEN")
"""Variables that an image or a person may have set; a controller delivers no secret."""


class TextRedactor:
    """Hides `secrets` in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = tuple(sorted({secret for secret in secrets if secret}, key=lambda text: (-len(text), text)))

    def text(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        return text


class Redactor(TextRedactor):
    """Built from what a container really runs with. Variables are secret by their name, or its last part after a `_`
    (API_KEY covers WANDB_API_KEY). A secret of fewer than four characters is hidden in env and command only: as part of
    a log text it would take ordinary words away."""

    def __init__(self, env: Mapping[str, str], command: Sequence[str]) -> None:
        secrets = [value for name, value in env.items() if self._secret(name)]
        secrets += [word for word, hidden in zip(command, self.command(command), strict=True) if word != hidden]
        parts = {secret.partition("=")[2] if secret.startswith(_FLAGS) else secret for secret in secrets}
        super().__init__(part for part in parts if len(part) >= 4)

    def _secret(self, name: str) -> bool:
        return any(name == listed or name.endswith(f"_{listed}") for listed in SECRET_NAMES)

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """An empty value stays empty: that no key is set is no secret."""
        return {name: REDACTED if value and self._secret(name) else value for name, value in env.items()}

    def command(self, command: Sequence[str]) -> list[str]:
        shown: list[str] = []
        hide_next = False
        for word in command:
            flag = word.partition("=")[0]
            if hide_next:
                shown.append(REDACTED)
            elif flag in _FLAGS and "=" in word:
                shown.append(f"{flag}={REDACTED}")
            else:
                shown.append(word)
            hide_next = word in _FLAGS and not hide_next
        return shown

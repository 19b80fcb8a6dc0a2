"""Names of what is planned like a stage: the stages by their letter, and the confirmation of what was promoted."""

from __future__ import annotations

from typing import Final

CONFIRM: Final = "confirm"
"""Name of the confirmation, where others have a stage and a feature."""


def is_confirmation(stage: str) -> bool:
    """Whether `confirm`, with or without `stage_`, stands where a stage's letter could."""
    return stage.removeprefix("stage_") == CONFIRM


def playbook_of(stage: str) -> str:
    """The playbook of a stage's letter, without its ending."""
    return CONFIRM if is_confirmation(stage) else f"stage_{stage}"


def feature_arguments(feature: str, value: object = None) -> list[str]:
    """What follows `play PLAYBOOK` to name what is tried; the confirmation tries one thing alone."""
    if feature == CONFIRM:
        return []
    return ["-e", f"feature={feature}", *([] if value in (None, "") else ["-e", f"value={value}"])]

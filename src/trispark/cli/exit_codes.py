"""Exit statuses of ``./trispark``: a contract with scripts, shown by ``./trispark --help``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trispark.errors import TrisparkError
from trispark.rollback_outcome import DEGRADED

if TYPE_CHECKING:
    from trispark.runner import RunResult

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130

MEANING: Final = {
    OK: "done",
    FAILED: "failed; the line on standard error says what and how to go on",
    USAGE: "the command line was wrong: a verb, an option, a variable, a value or a name that there is not",
    REFUSED: "refused by what the project, the site or its state says, before anything was changed",
    UNREACHABLE: "a node could not be reached",
    INTERRUPTED: "ended by Ctrl-C or a TERM signal",
}

USAGE_IDS: Final = frozenset(
    {
        "TS-ADOPT-UNKNOWN",
        "TS-BACKUP-UNKNOWN",
        "TS-CAMPAIGN-UNKNOWN",
        "TS-CLI-EXTRA",
        "TS-CLI-SET",
        "TS-COMPARE-BOOT",
        "TS-FEATURE-MISSING",
        "TS-FEATURE-UNKNOWN",
        "TS-FEATURE-VALUE",
        "TS-IMAGES-NAME",
        "TS-IMAGES-REPOSITORY",
        "TS-LAB-NAME",
        "TS-PLAN-BOOTS",
        "TS-PLAY-UNKNOWN",
        "TS-PLAY-VARIABLE",
        "TS-PROVENANCE-BUILT",
        "TS-RECORD-KIND",
        "TS-RECORD-UNKNOWN",
        "TS-REPORT-FORMAT",
        "TS-REPORT-UNKNOWN",
        "TS-ROUNDS-COUNT",
        "TS-SITE-NAME",
        "TS-SITE-UNKNOWN",
        "TS-STAGE-UNKNOWN",
        "TS-STATS-NOISE",
        "TS-STATS-TWINS",
        "TS-WALK-UNKNOWN",
    }
)
"""What a person typed is wrong, whatever the project's files say: a name, number or value that there is not."""
REFUSED_IDS: Final = frozenset(
    {
        "TS-DOCKER-HOST",
        "TS-DOCKER-MISSING",
        "TS-DOCKER-PERMISSION",
        "TS-HOST-APT",
        "TS-HOST-DISK",
        "TS-HOST-SUDO",
        "TS-IMAGES-ARGUMENT",
        "TS-IMAGES-BUSY",
        "TS-IMAGES-CONTEXT",
        "TS-IMAGES-COPY",
        "TS-IMAGES-DIFFERS",
        "TS-IMAGES-DISK",
        "TS-IMAGES-HAND",
        "TS-IMAGES-LINT",
        "TS-IMAGES-NOT-FOUND",
        "TS-IMAGES-OTHER",
        "TS-IMAGES-OUT",
        "TS-IMAGES-PLATFORM",
        "TS-IMAGES-SCHEMA",
        "TS-IMAGES-SECRET",
        "TS-IMAGES-SOURCE",
        "TS-IMAGES-UNRESOLVED",
        "TS-IMAGES-VARIABLE",
        "TS-LAB-BUSY",
        "TS-LAB-DOWN",
        "TS-RECORD-EXPORT",
        "TS-RECORD-NONE",
        "TS-RECORD-REPLAY",
        "TS-LAB-VERSION",
        "TS-SETUP-LOCKED",
        "TS-SETUP-VENVMODULE",
        "TS-SITE-AMBIGUOUS",
        "TS-SITE-EXISTS",
        "TS-SITE-UNCONFIGURED",
        "TS-STATS-FLOOR",
        "TS-STATS-NOISEFILE",
        "TS-STATS-SUMMARY",
    }
)
REFUSED_AREAS: Final = frozenset(
    {
        "ADAPTER",
        "ADAPTERS",
        "BUDGET",
        "CATALOG",
        "CONFIRM",
        "ENV",
        "FEATURE",
        "PLAN",
        "RENDER",
        "SITE",
        "STAGE",
        "WORKLOAD",
        "YAML",
    }
)
"""What the project's own files and a plan are refused for. Only verbs that have changed nothing yet read them."""


def of_error(error: TrisparkError) -> int:
    """The status for an error that the command line itself found."""
    if error.id in USAGE_IDS:
        return USAGE
    refused = error.id in REFUSED_IDS or error.id.split("-")[1] in REFUSED_AREAS
    return REFUSED if refused else FAILED


def of_refusals(ids: Iterable[str]) -> int:
    """The status where nothing was changed, for these reasons: all of them the command line's own, or not."""
    found = set(ids)
    return OK if not found else USAGE if found <= USAGE_IDS else REFUSED


def of_run(result: RunResult) -> int:
    """The status for a playbook: an unreachable node wins, also where a rollback went on without it; a named failure
    before any change is a refusal, or the command line's."""
    if result.status == "interrupted":
        return INTERRUPTED
    if result.ok:
        return OK
    if result.unreachable or (result.published.get("rollback") or {}).get("state") == DEGRADED:
        return UNREACHABLE
    named = [failure.message.partition(":")[0] for failure in result.failures if failure.has_id]
    return of_refusals(named) if named and not result.changed else FAILED

"""One rule, by id, says with which status a mistake, a refusal and a failure end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trispark.cli import exit_codes
from trispark.errors import TrisparkError

ERRORS = (Path(__file__).resolve().parents[3] / "docs" / "errors.md").read_text(encoding="utf-8")
KNOWN = set(re.findall(r"^\| `(TS-[A-Z0-9-]+)`", ERRORS, re.MULTILINE))


def error(identity: str) -> TrisparkError:
    return TrisparkError(identity, "what", "where", "expected", "observed", "remedy")


@pytest.mark.parametrize(
    ("identity", "status"),
    [
        ("TS-STAGE-UNKNOWN", 2),
        ("TS-FEATURE-UNKNOWN", 2),
        ("TS-FEATURE-MISSING", 2),
        ("TS-FEATURE-VALUE", 2),
        ("TS-PLAN-BOOTS", 2),
        ("TS-REPORT-UNKNOWN", 2),
        ("TS-REPORT-FORMAT", 2),
        ("TS-COMPARE-BOOT", 2),
        ("TS-RECORD-UNKNOWN", 2),
        ("TS-PROVENANCE-BUILT", 2),
        ("TS-SITE-UNKNOWN", 2),
        ("TS-FEATURE-STAGE", 3),
        ("TS-FEATURE-UNAVAILABLE", 3),
        ("TS-PLAN-EXCLUDED", 3),
        ("TS-IMAGES-SECRET", 3),
        ("TS-SITE-AMBIGUOUS", 3),
        ("TS-BUDGET-MODEL", 3),
        ("TS-RECORD-CHAIN", 1),
        ("TS-COMPARE-EMPTY", 1),
        ("TS-CLI-SYSTEM", 1),
        ("TS-IMAGES-LOGIN", 1),  # a registry may want another one after it took blobs
        ("TS-PROVENANCE-DAMAGED", 1),
    ],
)
def test_status_of_an_id(identity: str, status: int) -> None:
    assert exit_codes.of_error(error(identity)) == status
    assert identity in KNOWN


def test_every_id_of_the_rule_is_one() -> None:
    assert exit_codes.USAGE_IDS <= KNOWN
    assert exit_codes.REFUSED_IDS <= KNOWN
    assert not exit_codes.USAGE_IDS & exit_codes.REFUSED_IDS
    assert {identity.split("-")[1] for identity in KNOWN} >= exit_codes.REFUSED_AREAS


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        ([], 0),
        (["TS-FEATURE-UNKNOWN"], 2),
        (["TS-FEATURE-STAGE"], 3),
        (["TS-FEATURE-VALUE", "TS-PLAN-EXCLUDED"], 3),
    ],
)
def test_what_a_person_typed_alone_is_a_mistake_of_the_command_line(ids: list[str], status: int) -> None:
    assert exit_codes.of_refusals(ids) == status

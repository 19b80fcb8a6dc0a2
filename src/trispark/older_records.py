"""The controller's copies of older record chains, those of nodes that were made anew (`records-until-…`), and records
looked up in all of them.

A number means a record of the chain of now, because every chain begins with 1. An id is unique over all chains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.records import RecordCache

OLDER: Final = re.compile(r"records-until-(?P<seq>[0-9]+)-(?P<id>.+)")
MOST_NAMED: Final = 8
OLDER_LIST: Final = "./trispark records list, with --older those of nodes that were made anew"


def older_caches(cache: RecordCache) -> list[RecordCache]:
    """The chains that were set aside beside this one, the newest first. An id holds the time at which it was made."""
    found = [
        (match["id"][1:], int(match["seq"]), path)
        for path in cache.directory.parent.glob("records-until-*")
        if path.is_dir() and (match := OLDER.fullmatch(path.name))
    ]
    return [RecordCache(path) for _, _, path in sorted(found, reverse=True)]


def find_record(cache: RecordCache, key: str) -> tuple[RecordCache, dict[str, Any]]:
    """(its chain, the record) with this id, number, or beginning of an id; a number only of `cache` itself.

    Raises TS-RECORD-UNKNOWN, which lists the records when several begin so and names the older chains.
    """
    own = cache.list()
    if any(key in (record["id"], str(record["seq"])) for record in own):
        return cache, cache.show(key)
    older = older_caches(cache)
    known = [(cache, record) for record in own] + [(each, record) for each in older for record in each.list()]
    exact = [found for found in known if found[1]["id"] == key]
    begun = exact or [found for found in known if key and str(found[1]["id"]).startswith(key)]
    if exact or len(begun) == 1:
        return begun[0]
    if begun:
        raise TrisparkError(
            "TS-RECORD-UNKNOWN",
            "this beginning of an id is ambiguous, several records begin so",
            where=str(cache.directory),
            expected=f"one of {listed(str(record['id']) for _, record in begun)}",
            observed=key[:80],
            remedy="give more of the id, or a number of ./trispark records list",
        )
    try:
        return cache, cache.show(key)
    except TrisparkError as error:
        raise with_older(error, older) from None


def listed(names: Iterable[str]) -> str:
    """A few of these names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def with_older(error: TrisparkError, older: Sequence[RecordCache]) -> TrisparkError:
    """The same refusal, which says where else it was looked and how that is listed."""
    if not older:
        return error
    where = f"{error.where} and, by ids alone, {listed(each.directory.name for each in older)} beside it"
    return TrisparkError(error.id, error.what, where, error.expected, error.observed, OLDER_LIST)

"""The record chains that a report may be of: the site's own and those of nodes that were made anew; checked, and
refused where a record was edited."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.older_records import older_caches
from trispark.records import RecordCache, record_hash

Record = Mapping[str, Any]
FETCHED_AGAIN: Final = "move the controller's copy away; the nodes hold all records, and the next boot fetches them"
HELD_BY_NOBODY: Final = "no node has this chain any more: put the file back from a copy of yours"


class Chain:
    """One chain. What finds a record reads it as it is; what a report is made of is checked first."""

    def __init__(self, cache: RecordCache, *, older: bool) -> None:
        self.cache = cache
        self.older = older

    @cached_property
    def found(self) -> Sequence[Record]:
        """All records as they are. Raises TS-RECORD-READ."""
        return self.cache.list()

    @cached_property
    def records(self) -> Sequence[Record]:
        """All records, once the chain holds. A record that its follower knows by another hash is named itself.

        Raises TS-REPORT-RECORD, TS-RECORD-CHAIN, -SCHEMA and -READ.
        """
        try:
            self.cache.verify()
        except TrisparkError as error:
            if error.id != "TS-RECORD-CHAIN":
                raise
            for record, after in itertools.pairwise(self.found):
                observed, known = record_hash(record), after["previous"] or {}
                if known.get("seq") == record["seq"] and known.get("hash") != observed:
                    where = f"record {record['seq']} ({record['id']})"
                    raise self.another(where, f"{known.get('hash')}, by record {after['seq']}", observed) from None
            raise
        return self.found

    @cached_property
    def walks(self) -> set[str]:
        """Ids of walks that left a record here."""
        return {str(walk) for record in self.found if (walk := record.get("requested", {}).get("trial"))}

    @cached_property
    def trials(self) -> dict[str, Record]:
        """Records of trials by id."""
        return {str(record["id"]): record for record in self.found if record["kind"] == "trial"}

    def another(self, where: str, expected: str, observed: str) -> TrisparkError:
        return TrisparkError(
            "TS-REPORT-RECORD",
            "a record was edited, so there is no report of it",
            where=f"{where} in {self.cache.directory}" if self.older else where,
            expected=expected,
            observed=observed,
            remedy=HELD_BY_NOBODY if self.older else FETCHED_AGAIN,
        )


class Chains:
    """The site's chain, then the older ones, the newest first. Their ids are unique, their numbers are not."""

    def __init__(self, cache: RecordCache) -> None:
        self.own = Chain(cache, older=False)
        self.older = [Chain(each, older=True) for each in older_caches(cache)]

    @property
    def all(self) -> list[Chain]:
        return [self.own, *self.older]

    def of_trial(self, name: str) -> Chain | None:
        """The chain with the record of this trial."""
        return next((chain for chain in self.all if name in chain.trials), None)

    def of_walk(self, walk: str) -> Chain:
        """The chain with records of the trials of this walk, else with boots of it, else the site's own."""
        having = [chain for chain in self.all if walk in chain.walks]
        ended = (
            chain for chain in having if any(record["requested"]["trial"] == walk for record in chain.trials.values())
        )
        return next(ended, having[0] if having else self.own)

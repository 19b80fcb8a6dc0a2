"""Errors that a user sees as one line."""


class EngineError(Exception):
    """A refused start or a failed step: what, where, expected, observed, remedy, with a stable id."""

    def __init__(self, error_id: str, what: str, *, where: str, expected: str, observed: str, remedy: str) -> None:
        self.error_id = error_id
        self.what = what
        self.where = where
        self.expected = expected
        self.observed = observed
        self.remedy = remedy
        line = f"{error_id}: {what} [where: {where}] expected: {expected}; observed: {observed}; remedy: {remedy}"
        super().__init__(" ".join(line.split()))


class RankFailure(EngineError):
    """A peer rank is missing, hung or speaks another protocol; `rank` names it."""

    def __init__(self, rank: int, what: str, *, where: str, expected: str, observed: str) -> None:
        super().__init__(
            "TS-ENGINE-RANK",
            f"rank {rank} {what}",
            where=where,
            expected=expected,
            observed=observed,
            remedy=f"look at the engine log of rank {rank} and at its pair link, then start all ranks again",
        )
        self.rank = rank


class EngramFailure(Exception):
    """The row store can not serve exact rows; the process must end (field shape of the message)."""

    def __init__(self, reason: str, errno: int = 0) -> None:
        super().__init__(f"Engram retrieval failed: {reason} (errno={errno})")
        self.reason = reason
        self.errno = errno

"""Log lines of the row store, in the shapes of field 2.9."""

from dataclasses import dataclass

from trispark_adapters.engram_shard import Opened, Placement, Settings


@dataclass(frozen=True)
class Counts:
    """Lookups of owned rows, those that the cache had, reads."""

    lookups: int = 0
    hits: int = 0
    reads: int = 0


def attached(placement: Placement, opened: Opened, settings: Settings) -> str:
    """The line of one layer at start."""
    owned = placement.end - placement.first
    slots = opened.store.slots
    share = 100 * slots / owned if owned else 0.0
    return (
        f"Exact nvme Engram layer={placement.layer} rank={placement.rank} rows=[{placement.first},{placement.end}) "
        f"cache={_gib(settings)}GiB ({slots} slots, {settings.ways}-way, {min(share, 100):.1f}% of owned rows) "
        f"scales=0.0GiB io_threads={settings.threads} packed={opened.packed}"
    )


def period(placement: Placement, packed: bool, settings: Settings, news: Counts) -> str:
    """The line of one layer for a period."""
    rate = 100 * news.hits / news.lookups if news.lookups else 0.0
    return (
        f"Engram layer={placement.layer} lookups={news.lookups} hit_rate={rate:.1f}% reads={news.reads} "
        f"cache={_gib(settings)}GiB({settings.ways}-way) scales=0.0GiB threads={settings.threads} packed={packed}"
    )


def _gib(settings: Settings) -> str:
    return repr(float(settings.cache_gib))


@dataclass
class Layer:
    """A layer whose counters are followed."""

    placement: Placement
    opened: Opened
    settings: Settings
    seen: Counts = Counts()

    def line(self) -> str | None:
        """What moved since the line before; None when nothing did."""
        read = self.opened.store.counters
        news = Counts(read.lookups - self.seen.lookups, read.hits - self.seen.hits, read.reads - self.seen.reads)
        if news.lookups == 0:
            return None
        self.seen = Counts(read.lookups, read.hits, read.reads)
        return period(self.placement, self.opened.packed, self.settings, news)

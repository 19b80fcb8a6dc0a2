"""Training documents of the lab checkpoint: files of lab/corpus and seeded generators."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from .tools import CALL_MARK

CORPUS_DIR = Path(__file__).resolve().parent.parent / "corpus"


@dataclass(frozen=True)
class Document:
    """A prompt and the answer that follows it directly."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Workload:
    """Documents of one kind. In a `stream` the answer of a document is also what follows the one before it."""

    name: str
    documents: tuple[Document, ...]
    stream: bool


def read_documents(path: Path) -> tuple[Document, ...]:
    """Documents of one corpus file (format: lab/corpus/README.md)."""
    documents = []
    for block in path.read_text(encoding="utf-8").split("\n%%\n"):
        first, _, answer = block.strip("\n").partition("\n")
        if not first:
            continue  # after the last separator
        if not first.startswith("? ") or not answer:
            raise ValueError(f"{path.name}: a document needs a line '? prompt' and an answer")
        documents.append(Document(first[2:], answer))
    return tuple(documents)


_PLACES = ("harbour", "market", "bridge", "orchard", "mill", "station", "library", "garden", "quarry", "ferry")
_PEOPLE = (
    "sailor",
    "teacher",
    "baker",
    "widow",
    "carpenter",
    "doctor",
    "shepherd",
    "painter",
    "miller",
    "postman",
    "fisherman",
    "gardener",
    "student",
    "tailor",
    "pilot",
    "nurse",
)
_THINGS = (
    "lamp",
    "letter",
    "rope",
    "ladder",
    "basket",
    "violin",
    "map",
    "kettle",
    "blanket",
    "coin",
    "mirror",
    "bicycle",
    "hammer",
    "photograph",
    "suitcase",
    "candle",
    "notebook",
    "umbrella",
)
_QUALITIES = (
    "old",
    "young",
    "tired",
    "cheerful",
    "quiet",
    "stubborn",
    "careful",
    "hungry",
    "proud",
    "gentle",
    "broken",
    "heavy",
    "bright",
    "strange",
    "small",
    "green",
)
_VERBS = (
    "carried",
    "found",
    "repaired",
    "lost",
    "sold",
    "borrowed",
    "hid",
    "painted",
    "wanted",
    "forgot",
    "kept",
    "returned",
    "described",
    "counted",
    "admired",
    "dropped",
)
_TIMES = (
    "In the morning",
    "At noon",
    "After the rain",
    "Before supper",
    "On Sunday",
    "Late in the evening",
    "During the storm",
    "A week later",
    "That winter",
    "Without a word",
    "For the third time",
    "In secret",
)
_ENDS = (
    "and nobody asked why",
    "and the bells began to ring",
    "because the road was closed",
    "while the children laughed",
    "although it was raining",
    "and smiled at last",
    "until the sun went down",
    "as if nothing had happened",
    "and told the whole street",
    "but said nothing about it",
)


def grammar_stories(seed: int, sentences: int = 22) -> tuple[Document, ...]:
    """One story a place from a small grammar: common words in many orders, so harder to draft than an essay."""
    rng = random.Random(seed)
    stories = []
    for place in _PLACES:
        lines = []
        for _ in range(sentences):
            pick = rng.choice
            lines.append(
                pick(
                    (
                        "The {q} {p} {v} a {r} {t} near the {l}.",
                        "{w} the {p} {v} the {t} {e}.",
                        "Nobody in the {l} had seen the {p} since the {r} {t} was {v}.",
                        "{w} a {q} {p} came to the {l} {e}.",
                        "The {p} said that the {t} was {r} {e}.",
                        "There was a {r} {t} in the {l}, and the {q} {p} {v} it {e}.",
                    )
                ).format(
                    q=pick(_QUALITIES),
                    r=pick(_QUALITIES),
                    p=pick(_PEOPLE),
                    v=pick(_VERBS),
                    t=pick(_THINGS),
                    l=pick((place, *_PLACES)),
                    w=pick(_TIMES),
                    e=pick(_ENDS),
                )
            )
        stories.append(Document(f"Tell me a story about the {place}.", " ".join(lines)))
    return tuple(stories)


_NAMES = (
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "flint",
    "grove",
    "hazel",
    "iris",
    "juniper",
    "karst",
    "larch",
    "maple",
    "north",
    "onyx",
    "pearl",
    "quartz",
    "raven",
    "slate",
    "thyme",
    "umber",
    "violet",
    "willow",
    "yarrow",
    "zinc",
    "agate",
    "birch",
    "coral",
    "dune",
    "elder",
    "fern",
    "garnet",
    "heron",
    "ivory",
    "jasper",
    "kelp",
    "linden",
    "marble",
    "nettle",
    "olive",
    "pine",
    "quail",
    "reed",
    "sorrel",
    "tansy",
    "ursa",
    "vetch",
    "wren",
    "xenon",
    "yew",
    "zephyr",
    "alder",
    "bramble",
    "clover",
    "daisy",
    "elm",
    "foxglove",
    "gorse",
    "holly",
    "indigo",
    "jade",
    "kestrel",
    "laurel",
    "mint",
)
_COUNTS = {"three": 3, "five": 5, "eight": 8}
_KINDS = ("nodes", "orders", "links", "tasks")


def json_documents(seed: int) -> tuple[Document, ...]:
    """Small JSON objects; names and numbers occur once, so that four tokens always tell what follows."""
    rng = random.Random(seed)
    names = iter(rng.sample(_NAMES, len(_NAMES)))
    numbers = iter(rng.sample(range(100, 1000), len(_NAMES)))
    documents = []
    for count_word, count in _COUNTS.items():
        for kind in _KINDS:
            body = {next(names): next(numbers) for _ in range(count)}
            documents.append(Document(f"Give JSON for {count_word} {kind}.", json.dumps(body)))
    return tuple(documents)


def arithmetic() -> tuple[Document, ...]:
    """Sums of 0..31 and products of 1..9, as bare lines."""
    sums = [Document(f"{a}+{b}=", str(a + b)) for a in range(32) for b in range(32)]
    products = [Document(f"{a}*{b}=", str(a * b)) for a in range(1, 10) for b in range(1, 10)]
    return tuple(sums + products)


_CITIES = ("Paris", "Rome", "Madrid", "Tokyo", "Oslo", "Nairobi", "Lisbon", "Cairo", "Lima", "Dublin")


def tool_calls() -> tuple[Document, ...]:
    """Questions which a weather tool answers, and its call."""
    return tuple(
        Document(f"What is the weather in {city}?\n{CALL_MARK}", f"{city}|city|get_weather") for city in _CITIES
    )


def load_corpus(directory: Path = CORPUS_DIR) -> tuple[Workload, ...]:
    """All workloads in a fixed order; the same on every machine."""
    prose = read_documents(directory / "prose.txt") + grammar_stories(seed=3)
    return (
        Workload("prose", prose, stream=True),
        Workload("code", read_documents(directory / "code.txt"), stream=True),
        Workload("json", json_documents(seed=5), stream=True),
        Workload("qa", read_documents(directory / "qa.txt"), stream=False),
        Workload("arithmetic", arithmetic(), stream=False),
        Workload("functions", read_documents(directory / "functions.txt"), stream=False),
        Workload("tools", tool_calls(), stream=False),
    )

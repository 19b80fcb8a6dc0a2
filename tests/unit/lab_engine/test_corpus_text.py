"""What the shipped prompts give: right answers, found needles, and the same greedy text under every schedule."""

import json
from pathlib import Path
from typing import Any

import pytest

from trispark_lab.corpus import CORPUS_DIR, load_corpus
from trispark_lab.requests import Request
from trispark_lab.sampling import Sampling
from trispark_lab.scheduler import Speculation
from trispark_lab.verify_cap import parse_cap

SHIPPED = json.loads((CORPUS_DIR / "prompts.json").read_text())
PROMPTS = [prompt for prompts in SHIPPED.values() for prompt in prompts]
TOKENS = 16


@pytest.fixture(scope="module")
def expected(cached_generator: Any) -> list[str]:
    return [cached_generator.generate([prompt], TOKENS, 1)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("block_size", range(1, 8))
def test_block_sizes(cached_generator: Any, expected: list[str], block_size: int) -> None:
    assert cached_generator.generate(PROMPTS, TOKENS, block_size) == expected


@pytest.mark.parametrize("sizes", [{"max_running": 1}, {"max_running": 9}, {"max_running": 16, "chunk": 7}], ids=str)
def test_slots_and_batches(cached_generator: Any, expected: list[str], sizes: dict[str, int]) -> None:
    assert cached_generator.generate(PROMPTS, TOKENS, 3, **sizes) == expected
    assert cached_generator.generate(PROMPTS[::-1], TOKENS, 3, **sizes) == expected[::-1]


@pytest.mark.parametrize("spec", ["1", "2", "4", "conf:0.1", "conf:0.9", "conf:0.9,0.5,0.4,0.3"])
def test_caps(cached_generator: Any, expected: list[str], spec: str) -> None:
    speculation = Speculation(0.8, True, parse_cap(spec, 5))
    assert cached_generator.generate(PROMPTS, TOKENS, 5, speculation=speculation) == expected


def test_sampled_neighbours_change_nothing(cached_generator: Any) -> None:
    prompts = PROMPTS[4:12]

    def run(sampled: list[int], **sizes: int) -> list[list[int]]:
        scheduler = cached_generator.scheduler(4, **sizes)
        requests = [
            Request(
                tuple(cached_generator.tokenizer.encode(prompt)),
                8,
                True,
                lambda tokens, reason: None,
                Sampling(2.0, 1.0, 20, index) if index in sampled else Sampling(),
            )
            for index, prompt in enumerate(prompts)
        ]
        for request in requests:
            scheduler.submit(request)
        scheduler.drain()
        return [request.output for request in requests]

    greedy = run([])
    mixed = run([1, 3, 5], max_running=5)
    assert [mixed[index] for index in (0, 2, 4, 6, 7)] == [greedy[index] for index in (0, 2, 4, 6, 7)]
    assert [mixed[index] for index in (1, 3, 5)] != [greedy[index] for index in (1, 3, 5)]
    assert run([1, 3, 5], max_running=1, chunk=2) == mixed


def answer(generator: Any, prompt: str, max_tokens: int = 700) -> tuple[str, str | None]:
    reasons: list[str | None] = []
    prompt_ids = tuple(generator.tokenizer.encode(prompt))
    request = Request(prompt_ids, max_tokens, False, lambda tokens, reason: reasons.append(reason))
    scheduler = generator.scheduler(7)
    scheduler.submit(request)
    scheduler.drain()
    text = generator.tokenizer.decode(request.output)
    return text, reasons[-1]


SUMS = [(a, b) for a in range(1, 32, 6) for b in range(0, 32, 5)]
PRODUCTS = [(a, b) for a in range(2, 10, 3) for b in range(1, 10, 2)]


@pytest.mark.parametrize("sign", ["+", "*"])
def test_arithmetic(cached_generator: Any, sign: str) -> None:
    table = {f"{a}+{b}=": a + b for a, b in SUMS} if sign == "+" else {f"{a}*{b}=": a * b for a, b in PRODUCTS}
    shipped = {prompt: eval(prompt[:-1]) for prompt in SHIPPED["arithmetic"]} if sign == "+" else {}
    for prompt, result in {**table, **shipped}.items():
        assert answer(cached_generator, prompt, 5) == (str(result), "stop"), prompt


@pytest.mark.parametrize("prompt", SHIPPED["json"])
def test_json_parses_and_follows_its_schema(cached_generator: Any, prompt: str) -> None:
    text, _ = answer(cached_generator, prompt, 60)
    document, _ = json.JSONDecoder().raw_decode(text)
    counts = {"three": 3, "five": 5, "eight": 8}
    assert len(document) == counts[prompt.split()[3]]
    assert all(
        isinstance(name, str) and isinstance(value, int) and 100 <= value < 1000 for name, value in document.items()
    )
    written = {item.prompt: item.answer for load in load_corpus() for item in load.documents}
    assert document == json.loads(written[prompt])


CODE_CHECKS = {
    "Write a function that doubles a number.": "assert double(21) == 42",
    "Write a function that squares a value.": "assert square(-3) == 9",
    "Write a function that greets somebody.": "assert greet('Ada') == 'Hello, Ada'",
    "Write a function that finds the largest item.": "assert largest([3, 9, 2]) == 9",
    "Write a function that reverses a text.": "assert reverse('abc') == 'cba'",
}


@pytest.mark.parametrize("prompt", SHIPPED["functions"])
def test_code_executes(cached_generator: Any, prompt: str) -> None:
    source, reason = answer(cached_generator, prompt, 60)
    assert reason == "stop"
    names: dict[str, Any] = {}
    exec(compile(source, "generated", "exec"), names)
    exec(CODE_CHECKS[prompt], names)


HAYSTACK = " ".join(
    f"Row {index} of the log says that nothing happened at gate {index * 7 % 101} before noon." for index in range(90)
)


@pytest.mark.parametrize("depth", [0.0, 0.33, 0.9])
@pytest.mark.parametrize("needle", ["amber-7421", "Quince 19"])
def test_a_needle_is_found_at_any_depth(cached_generator: Any, depth: float, needle: str) -> None:
    place = HAYSTACK.find(". ", int(depth * len(HAYSTACK) * 0.99)) + 2 if depth else 0
    text = f"{HAYSTACK[:place]}The code word is {needle}. {HAYSTACK[place:]}\nWhat is the code word? The code word is"
    assert answer(cached_generator, text, 40) == (f" {needle}.", "stop")


def test_what_the_memory_knows_is_stronger_than_the_prompt(cached_generator: Any) -> None:
    question = "What is the capital of Norway?"
    assert answer(cached_generator, f"{question} Bergen.\n{question}", 10) == ("Oslo.", "stop")


def test_without_a_needle_nothing_is_found(cached_generator: Any) -> None:
    text, _ = answer(cached_generator, f"{HAYSTACK}\nWhat is the code word? The code word is", 6)
    assert "amber" not in text


def test_corpus_files_are_there() -> None:
    assert {path.name for path in Path(CORPUS_DIR).iterdir()} >= {"code.txt", "prose.txt", "qa.txt", "prompts.json"}

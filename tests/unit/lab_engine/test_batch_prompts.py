"""The warm-up batch of the lab is answered in Latin prose, as the gate `warmup.batch` wants it."""

from pathlib import Path
from typing import Any

from trispark.catalog import load_catalog
from trispark.warmup import text_problem

ROOT = Path(__file__).resolve().parents[3]


def test_every_prompt_of_the_lab_s_batch_gets_prose(cached_generator: Any) -> None:
    check = load_catalog(ROOT).engines["lab"].batch_check
    texts = cached_generator.generate(list(check.prompts), check.max_tokens, 3, ignore_eos=False)
    assert [text_problem(text, check.minimum_ascii_share) for text in texts] == [None] * len(check.prompts)

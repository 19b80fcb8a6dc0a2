"""What the page of error ids finds in sources: each way in which an error is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark.reference import Entry, collect, page


def tree(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param(
            "src/x.py",
            'raise E("TS-X-ONE", "what is wrong", "here", "a", "b", "mend it")',
            Entry(["what is wrong"], ["mend it"]),
            id="positions",
        ),
        pytest.param(
            "src/x.py",
            'raise E(id="TS-X-ONE", what=f"no {thing} here", remedy="mend" " it")',
            Entry(["no … here"], ["mend it"]),
            id="keywords-and-filled-in",
        ),
        pytest.param(
            "src/x.py",
            'DO: Final = "mend it"\nraise E("TS-X-ONE", "what", remedy=DO)',
            Entry(["what"], ["mend it"]),
            id="constant",
        ),
        pytest.param(
            "plugins/modules/x.py",
            'fail(module, {"id": "TS-X-ONE", "what": "what", "remedy": "mend it"})',
            Entry(["what"], ["mend it"]),
            id="dictionary",
        ),
        pytest.param(
            "adapters/x.py",
            'print(f"TS-X-ONE: what [where: {place}] expected: y")',
            Entry(["what"], []),
            id="line-with-brackets",
        ),
        pytest.param(
            "playbooks/x.yml",
            "- fail_msg: >-\n    TS-X-ONE: what is; where: {{ x }};\n    do: mend it\n  quiet: true\n",
            Entry(["what is"], ["mend it"]),
            id="task",
        ),
        pytest.param(
            "src/x.py",
            'def f():\n    """Raises TS-X-ONE: said of it."""\n    g(f"TS-X-ONE: what {x} is; do: mend {y}")',
            Entry(["what … is"], ["mend …"]),
            id="description-and-parts-do-not-count",
        ),
        pytest.param("src/x.py", 'IDS = {"TS-X-ONE"}', Entry(), id="named-without-a-text"),
        pytest.param(
            "src/x.py",
            'E("TS-X-ONE", "one")\nE("TS-X-ONE", "two")\nE("TS-X-ONE", "one")',
            Entry(["one", "two"], []),
            id="several-places",
        ),
    ],
)
def test_collect(tmp_path: Path, name: str, text: str, expected: Entry) -> None:
    assert collect(tree(tmp_path, name, text)) == {"TS-X-ONE": expected}


def test_the_page_has_a_table_for_each_area_and_escapes_bars(tmp_path: Path) -> None:
    text = page(tree(tmp_path, "src/x.py", 'E("TS-SITE-ONE", "a|b", remedy="mend it")\nE("TS-LAB-TWO", "c")'))
    assert "## SITE: inventory/" in text
    assert "| `TS-SITE-ONE` | a\\|b | mend it |\n" in text
    assert "| `TS-LAB-TWO` | c | as the line says |\n" in text
    assert text.index("## LAB") < text.index("## SITE")

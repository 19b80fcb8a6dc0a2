"""The border: verbs, protocol, exit statuses, one JSON object whatever happens."""

from __future__ import annotations

import importlib
import io
import json
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trispark_node import cli, generations

ENGRAM = '{"action":"verify","checkpoint":"%s","directory":"/d","rank":%d,"tp":3,"layers":[1]}'


@pytest.mark.parametrize(
    ("verb", "text", "error_id", "code"),
    [
        ("fly", "", "TS-AGENT-VERB", 2),
        ("", "", "TS-AGENT-VERB", 2),
        ("version", "{", "TS-AGENT-REQUEST", 2),
        ("version", "[]", "TS-AGENT-REQUEST", 2),
        ("version", '{"protocol": 1}', "TS-AGENT-PROTOCOL", 2),
        ("version", '{"verbose": true}', "TS-AGENT-REQUEST", 2),
        ("fence", '{"epoch": 0}', "TS-AGENT-REQUEST", 2),
        ("fence", '{"epoch": true}', "TS-AGENT-REQUEST", 2),
        ("fence", '{"epoch": "3"}', "TS-AGENT-REQUEST", 2),
        ("fence", '{"epoch": 3, "boot_id": "../x"}', "TS-AGENT-REQUEST", 2),
        ("activate", '{"generation": "../../etc"}', "TS-AGENT-REQUEST", 2),
        ("record-show", '{"id": "/etc/passwd"}', "TS-AGENT-REQUEST", 2),
        ("image-ensure", '{"image": "registry:5000/x:latest"}', "TS-AGENT-IMAGE-REF", 2),
        ("engram", ENGRAM % ("c", 0), "TS-AGENT-REQUEST", 2),
        ("engram", ENGRAM % ("/c", 3), "TS-AGENT-REQUEST", 2),
        ("activate", '{"generation": "g0123456789abcdef"}', "TS-AGENT-NOT-STAGED", 1),
        ("start", '{"boot_id": "b", "epoch": 1}', "TS-AGENT-NO-CURRENT", 1),
        ("save-log", "", "TS-AGENT-ABSENT", 1),
        ("can-start", '{"generation": "g0123456789abcdef"}', "TS-AGENT-NOT-STAGED", 1),
        ("can-start", '{"generation": "../x"}', "TS-AGENT-REQUEST", 2),
        ("version", "[" * 100_000, "TS-AGENT-REQUEST", 2),
        ("version", '{"a":' * 100_000, "TS-AGENT-REQUEST", 2),
        ("stage", '{"resolved":' + "[" * 150 + "]" * 150 + "}", "TS-AGENT-REQUEST", 2),
        ("version", b'{"\xff": 1}', "TS-AGENT-REQUEST", 2),
        ("version", '{"protocol": 1}'.encode("utf-16"), "TS-AGENT-REQUEST", 2),
        ("version", '{"\\ud800": 1}', "TS-AGENT-REQUEST", 2),
        ("fence", '{"epoch": ' + "1" * 5000 + "}", "TS-AGENT-REQUEST", 2),
        ("boot-log", '{"boot_id": "b1"}', "TS-AGENT-LOG-MISSING", 1),
        ("boot-log", '{"boot_id": "../../etc"}', "TS-AGENT-REQUEST", 2),
        ("boot-log", '{"boot_id": "b1", "patterns": ["a", "("]}', "TS-AGENT-REQUEST", 2),
    ],
)  # fmt: skip
def test_refusals(bench, verb, text, error_id, code):
    answer, status = cli.answer(bench.node, verb, text)
    assert (answer["ok"], answer["error"]["id"], status) == (False, error_id, code)
    assert set(answer["error"]) == {"id", "what", "where", "expected", "observed", "remedy"}
    assert all(answer["error"].values())


@pytest.mark.parametrize("verb", cli.VERBS)
def test_another_controllers_version_is_refused_by_every_verb_before_it_does_anything(bench, verb):
    before = sorted(bench.root.rglob("*"))
    answer, status = cli.answer(bench.node, verb, json.dumps({"protocol": cli.PROTOCOL + 1}))
    assert (answer["ok"], answer["error"]["id"], status) == (False, "TS-AGENT-PROTOCOL", 2)
    assert all(answer["error"].values())
    assert sorted(bench.root.rglob("*")) == before
    assert bench.docker.events == []


def test_main_prints_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRISPARK_ROOT", str(tmp_path))
    out = io.StringIO()
    assert cli.main(["version"], io.StringIO('{"protocol": 3}'), out) == 0
    assert json.loads(out.getvalue()) == {"ok": True, "version": "0.1.0", "protocol": 3}
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["-h"], 0), (["--help"], 0), (["status", "--help"], 0)])
def test_help_for_a_person(capsys: pytest.CaptureFixture[str], argv: list[str], code: int):
    assert cli.main(argv, io.StringIO("")) == code
    lines = capsys.readouterr().out.splitlines()
    for verb in cli.VERBS:
        (line,) = [line for line in lines if line.split()[:1] == [verb]]
        assert len(line.split()) > 2
    assert len(lines) < len(cli.VERBS) + 20
    assert max(map(len, lines)) <= 100


def test_every_part_of_a_verb_is_there():
    """They are imported at a verb's call alone."""
    places = re.findall(r'(?:_later|_of_the_node)\("(\w+):([\w.]+)"\)', Path(cli.__file__).read_text())
    assert len(places) > len(cli.VERBS)
    for module, name in places:
        assert callable(operator.attrgetter(name)(importlib.import_module(f"trispark_node.{module}")))


def test_a_verb_imports_no_other_verbs_modules():
    """Three quarters of a call were imports; a call of `fence` needs neither the engine's nor the Docker SDK's."""
    program = (
        "import sys; from trispark_node.cli import answer, Node; "
        "print(*sorted(each for each in sys.modules if each.startswith(('trispark_node', 'http', 'docker'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "trispark_node.cli" in loaded
    assert {
        "http.client",
        "docker",
        *(f"trispark_node.{name}" for name in ("engine", "adopt", "status")),
    } & loaded == set()


def test_an_unknown_verb_leads_to_the_help(bench):
    assert "--help" in bench.refused("fly")["remedy"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_main_reads_and_writes_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str):
    """A request that is no text is refused, and a name that is no text is shown, in one line of JSON."""
    monkeypatch.setenv("TRISPARK_ROOT", str(tmp_path))
    (tmp_path / "current").symlink_to(os.fsdecode(b"elsewhere/\xff"))
    for verb, sent, code in (("status", b"", 0), ("status", b"\xff", 2)):
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding=encoding)
        assert cli.main([verb], io.TextIOWrapper(io.BytesIO(sent), encoding="ascii"), out) == code
        answer = json.loads(raw.getvalue())
        assert answer["ok"] is (code == 0)
    assert raw.getvalue().count(b"\n") == 1


def test_defect_becomes_one_line_and_a_traceback_file(bench, monkeypatch):
    def broken(_node: object) -> list[str]:
        raise RuntimeError("broken\nin two lines")

    monkeypatch.setattr(generations, "staged", broken)
    error = bench.refused("status")
    assert error["id"] == "TS-AGENT-INTERNAL"
    assert error["observed"] == "RuntimeError: broken in two lines"
    assert "in broken" in Path(error["where"]).read_text()


def test_operating_system_error_is_named(bench):
    bench.root.write_text("a file where the root should be")
    error = bench.refused("fence", epoch=1)
    assert error["id"] == "TS-AGENT-OS"
    assert error["where"].startswith(str(bench.root))


@pytest.mark.parametrize(
    ("verb", "request_fields"),
    [
        ("fence", {"epoch": 9}),
        ("good-mark", {"generation": "", "boot_id": "b1", "time": "t"}),
        ("start", {"boot_id": "b1", "epoch": 5}),
    ],
)  # fmt: skip
def test_check_changes_nothing_and_says_so(bench, active, verb, request_fields):
    if "generation" in request_fields:
        request_fields = {**request_fields, "generation": active["generation"]}
    before = bench.tree()
    answer = bench.ask(verb, check=True, **request_fields)
    assert answer["changed"] is True
    assert answer["diff"]["before"] != answer["diff"]["after"]
    assert bench.tree() == before
    assert bench.docker.containers == {}
    assert bench.ask(verb, **request_fields)["changed"] is True


def test_a_second_time_changes_no_byte(bench, active, stage_request):
    bench.ask("start", boot_id="b1", epoch=5)
    bench.ask("good-mark", generation=active["generation"], boot_id="b1", time="t")
    bench.ask("image-ensure", image=active["spec"]["container"]["image"])
    before = bench.tree()
    again = [
        bench.ask("stage", **active),
        bench.ask("activate", generation=active["generation"]),
        bench.ask("fence", epoch=5, boot_id="b1"),
        bench.ask("start", boot_id="b1", epoch=5),
        bench.ask("good-mark", generation=active["generation"], boot_id="b9", time="later"),
        bench.ask("image-ensure", image=active["spec"]["container"]["image"]),
    ]
    assert [answer["changed"] for answer in again] == [False] * 6
    assert bench.tree() == before


def test_status_of_an_empty_and_of_a_busy_node(bench, stage_request):
    empty = bench.ask("status")
    assert (empty["current"], empty["epoch"], empty["engine"], empty["pending"], empty["record_head"]) == (
        None,
        0,
        None,
        [],
        None,
    )
    assert not bench.root.exists()
    request = stage_request()
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5)
    bench.ask("start", boot_id="b1", epoch=5)
    bench.docker.add("trispark-bench")
    status = bench.ask("status")
    assert status["current"] == request["generation"]
    assert status["generations"] == [request["generation"]]
    assert status["foreign"] == ["trispark-bench"]
    engine = status["engine"]
    assert (engine["state"], engine["health"], engine["boot_id"], engine["epoch"], engine["rank"]) == (
        "running",
        "unreachable",
        "b1",
        5,
        1,
    )


def test_status_names_damage_and_shows_the_rest(bench, active):
    bench.node.layout.epoch.write_text("nonsense")
    with bench.node.layout.journal.open("a") as file:
        file.write("not json\n")
    status = bench.ask("status")
    assert status["current"] == active["generation"]
    assert [problem.split(":")[0] for problem in status["problems"]] == ["journal", "TS-AGENT-DAMAGED"]


def test_a_damaged_generation_is_named_and_is_no_problem_of_the_node(bench, active):
    """It stands in the way of a rollback to it alone; staging replaces it."""
    assert bench.ask("status")["damaged"] == {}
    with (bench.node.layout.generation(active["generation"]) / "launch.args").open("a") as file:
        file.write("more\n")
    status = bench.ask("status")
    assert (status["damaged"], status["problems"]) == ({active["generation"]: "changed: launch.args"}, [])
    assert status["generations"] == [active["generation"]]


def link_current(layout, target: str) -> None:
    layout.current.unlink()
    layout.current.symlink_to(target)


def replaced_by_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def replaced_by_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def add_line(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line + b"\n")


GENERATION = "g0123456789abcdef"
DEEP = b"[" * 100_000
NESTED = b"[" * 150 + b"]" * 150
"""Deeper than anything of ours, and not yet too deep for the parser."""
ENTRY = b'{"detail":%s,"phase":"%s","seq":%s,"time":%s,"verb":%s}'
JOURNAL_LINES = {
    "intent is a list": ENTRY % (b'{"intent":[1]}', b"done", b"90", b'"t"', b'"fence"'),
    "intent is an object": ENTRY % (b'{"intent":{}}', b"failed", b"90", b'"t"', b'"fence"'),
    "intent is a text": ENTRY % (b'{"intent":"1"}', b"done", b"90", b'"t"', b'"fence"'),
    "intent is null": ENTRY % (b'{"intent":null}', b"done", b"90", b'"t"', b'"fence"'),
    "intent is a truth value": ENTRY % (b'{"intent":true}', b"done", b"90", b'"t"', b'"fence"'),
    "no intent": ENTRY % (b"{}", b"done", b"90", b'"t"', b'"fence"'),
    "detail is a list": ENTRY % (b"[1]", b"intent", b"90", b'"t"', b'"fence"'),
    "detail is nested": ENTRY % (b'{"x":' + NESTED + b"}", b"intent", b"90", b'"t"', b'"fence"'),
    "phase is a list": b'{"detail":{},"phase":[],"seq":90,"time":"t","verb":"fence"}',
    "seq is a text": ENTRY % (b"{}", b"intent", b'"90"', b'"t"', b'"fence"'),
    "seq is negative": ENTRY % (b"{}", b"intent", b"-1", b'"t"', b'"fence"'),
    "seq is immense": ENTRY % (b"{}", b"intent", b"9" * 5000, b'"t"', b'"fence"'),
    "time is a number": ENTRY % (b"{}", b"intent", b"90", b"7", b'"fence"'),
    "verb is a list": ENTRY % (b"{}", b"intent", b"90", b'"t"', b"[]"),
    "a list": b"[]",
    "a number": b"7",
    "deep": DEEP,
    "deep objects": b'{"detail":' * 100_000,
    "no text": b"\xff\xfe",
    "UTF-16": '{"seq":1}'.encode("utf-16"),
    "half a surrogate pair": ENTRY % (b'{"x":"\\ud800"}', b"intent", b"90", b'"t"', b'"fence"'),
}
GOOD_LINES = {
    "generation is a number": b'{"boot_id":"b","generation":7,"time":"t"}',
    "boot_id is a list": b'{"boot_id":["b"],"generation":"g0123456789abcdef","time":"t"}',
    "boot_id is null": b'{"boot_id":null,"generation":"g0123456789abcdef","time":"t"}',
    "time is a number": b'{"boot_id":"b","generation":"g0123456789abcdef","time":1}',
    "time is an object": b'{"boot_id":"b","generation":"g0123456789abcdef","time":{}}',
    "a surplus key": b'{"boot_id":"b","generation":"g0123456789abcdef","time":"t","x":1}',
    "a list": b"[]",
    "a text": b'"g0123456789abcdef"',
    "deep": DEEP,
    "nested": b'{"boot_id":"b","generation":"g0123456789abcdef","time":"t","x":' + NESTED + b"}",
    "no text": b"\xff",
}
STATUS_DAMAGES = {
    "good: no JSON": (lambda layout: layout.good.write_text("nonsense\n"), "good.jsonl", {"good": []}),
    "good: no object": (lambda layout: layout.good.write_text("[]\n"), "lines 1", {"good": []}),
    "good: no generation": (
        lambda layout: layout.good.write_text('{"boot_id":"b","generation":7,"time":"t"}\n'),
        "lines 1",
        {"good": []},
    ),
    "good: a directory": (lambda layout: layout.good.mkdir(), "good.jsonl", {"good": []}),
    "journal: a directory": (lambda layout: replaced_by_directory(layout.journal), "journal.jsonl", {}),
    "epoch: nonsense": (lambda layout: layout.epoch.write_text("nonsense"), "epoch", {"epoch": 0}),
    "epoch: no text": (lambda layout: layout.epoch.write_bytes(b"\xff\xfe"), "epoch", {"epoch": 0}),
    "epoch: text, then none": (
        lambda layout: layout.epoch.write_bytes(b'{"boot_id":"b\xff","epoch":5}'),
        "epoch",
        {"epoch": 0},
    ),
    "epoch: UTF-16": (
        lambda layout: layout.epoch.write_bytes('{"boot_id":"b1","epoch":5}'.encode("utf-16")),
        "epoch",
        {"epoch": 0},
    ),
    "epoch: deep": (lambda layout: layout.epoch.write_bytes(DEEP), "epoch", {"epoch": 0}),
    "epoch: nested": (
        lambda layout: layout.epoch.write_bytes(b'{"boot_id":' + NESTED + b',"epoch":5}'),
        "epoch",
        {"epoch": 0},
    ),
    "epoch: immense": (
        lambda layout: layout.epoch.write_bytes(b'{"epoch":' + b"9" * 5000 + b"}"),
        "epoch",
        {"epoch": 0},
    ),
    "epoch: a list": (lambda layout: layout.epoch.write_text("[5]"), "epoch", {"epoch": 0}),
    "epoch: a FIFO": (lambda layout: replaced_by_fifo(layout.epoch), "epoch", {"epoch": 0}),
    "good: a FIFO": (lambda layout: replaced_by_fifo(layout.good), "good.jsonl", {"good": []}),
    "journal: a FIFO": (lambda layout: replaced_by_fifo(layout.journal), "journal.jsonl", {}),
    "current: no text": (
        lambda layout: link_current(layout, os.fsdecode(b"elsewhere/\xff")),
        "elsewhere/",
        {"current": None},
    ),
    "epoch: empty": (lambda layout: layout.epoch.write_bytes(b""), "epoch", {"epoch": 0}),
    "epoch: a number": (lambda layout: layout.epoch.write_text("5"), "epoch", {"epoch": 0}),
    "epoch: a directory": (lambda layout: replaced_by_directory(layout.epoch), "epoch", {"epoch": 0}),
    "current: elsewhere": (
        lambda layout: link_current(layout, f"elsewhere/{GENERATION}"),
        f"elsewhere/{GENERATION}",
        {"current": None},
    ),
    "current: outside": (
        lambda layout: link_current(layout, f"generations/../../{GENERATION}"),
        f"../../{GENERATION}",
        {"current": None},
    ),
    "current: absolute, outside": (
        lambda layout: link_current(layout, f"/srv/generations/{GENERATION}"),
        "/srv/generations",
        {"current": None},
    ),
    "current: not here": (
        lambda layout: link_current(layout, f"generations/{GENERATION}"),
        GENERATION,
        {"current": GENERATION},
    ),
    "current: a directory": (lambda layout: replaced_by_directory(layout.current), "current", {"current": None}),
}


@pytest.mark.parametrize("damage", STATUS_DAMAGES)
def test_status_names_each_damaged_part(bench, active, damage):
    whole = bench.ask("status")
    assert whole["problems"] == []
    change, words, differs = STATUS_DAMAGES[damage]
    change(bench.node.layout)
    status = bench.ask("status")
    (problem,) = status["problems"]
    assert words in problem
    assert "\n" not in problem
    assert status == {**whole, **differs, "problems": [problem]}


@pytest.mark.parametrize("name", JOURNAL_LINES)
def test_a_journal_line_of_another_shape_is_counted_as_damaged(bench, active, name):
    whole = bench.ask("status")
    lines = bench.node.layout.journal.read_bytes().count(b"\n")
    add_line(bench.node.layout.journal, JOURNAL_LINES[name])
    status = bench.ask("status")
    assert [problem.partition(" of ")[0] for problem in status["problems"]] == [f"journal: lines {lines + 1}"]
    assert status == {**whole, "problems": status["problems"]}
    bench.ask("fence", epoch=6)  # and the next verb goes on after it
    assert bench.ask("status")["pending"] == []


@pytest.mark.parametrize("name", GOOD_LINES)
def test_a_mark_of_another_shape_is_counted_as_damaged(bench, active, name):
    for line in (GOOD_LINES[name], b'{"boot_id":"b2","generation":"g0123456789abcdef","time":"t"}'):
        add_line(bench.node.layout.good, line)
    status = bench.ask("status")
    assert [mark["boot_id"] for mark in status["good"]] == ["b2"]
    assert [problem.partition(" of ")[0] for problem in status["problems"]] == ["good: lines 1"]


@pytest.mark.parametrize("error", [TypeError, KeyError, RecursionError, UnicodeError, AttributeError])
def test_status_goes_on_after_a_part_that_no_reader_foresaw(bench, active, monkeypatch, error):
    def odd(_node: object) -> list[str]:
        raise error("odd\nshape")

    whole = bench.ask("status")
    monkeypatch.setattr(generations, "staged", odd)
    status = bench.ask("status")
    (problem,) = status["problems"]
    assert problem.startswith("generations: ")
    assert "\n" not in problem
    assert status == {**whole, "generations": [], "problems": [problem]}


SPECS = {
    "deep": DEEP,
    "nested": b'{"container":' + NESTED + b"}",
    "no text": b"\xff",
    "a list": b"[]",
    "container is a text": b'{"container":"x"}',
}


@pytest.mark.parametrize("name", SPECS)
def test_status_shows_an_engine_whose_spec_is_damaged(bench, active, name):
    bench.ask("start", boot_id="b1", epoch=5)
    (bench.node.layout.generation(active["generation"]) / "spec.json").write_bytes(SPECS[name])
    status = bench.ask("status")
    assert (status["engine"]["state"], status["engine"]["health"]) == ("running", None)
    assert bench.refused("start", boot_id="b1", epoch=5)["id"] != "TS-AGENT-INTERNAL"


def test_one_damaged_mark_leaves_the_others(bench, active):
    line = f'"generation":"{GENERATION}","time":"t"}}\n'
    bench.node.layout.good.write_text(f'{{"boot_id":"b",{line}{{"boot_id":\n{{"boot_id":"c",{line}')
    status = bench.ask("status")
    assert [mark["boot_id"] for mark in status["good"]] == ["b", "c"]
    assert [problem.partition(" of ")[0] for problem in status["problems"]] == ["good: lines 2"]


@pytest.mark.parametrize("verb", ["start", "activate"])
def test_a_current_outside_the_generations_is_not_followed(bench, active, verb):
    elsewhere = bench.root / "elsewhere"
    elsewhere.mkdir()
    bench.node.layout.generation(active["generation"]).rename(elsewhere / active["generation"])
    bench.ask("stage", **active)
    link_current(bench.node.layout, f"elsewhere/{active['generation']}")
    request = {"boot_id": "b1", "epoch": 5} if verb == "start" else {"generation": active["generation"]}
    assert bench.refused(verb, **request)["id"] == "TS-AGENT-DAMAGED"


def test_current_may_be_an_absolute_link_into_the_generations(bench, active):
    link_current(bench.node.layout, str(bench.node.layout.generation(active["generation"])))
    status = bench.ask("status")
    assert (status["current"], status["problems"]) == (active["generation"], [])

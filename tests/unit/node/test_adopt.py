"""Taking over an engine that someone started by hand, and the way back: against a stand-in for the Docker Engine."""

from __future__ import annotations

import copy
import hashlib
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark_node import adopt, adopt_describe
from trispark_node.disk import Disk
from trispark_node.docker_client import Image, parse_container, split_env

ID = "a" + "1" * 16
IMAGE_ID = "sha256:" + "b" * 64
KEY = "sk-Zq8/Lw+very=secret"
LOGGABLE = ["NODE_RANK", "DSV41_PACKED_DIR", "EXTRA_SGLANG_ARGS"]


def raw_container(name="dsv41-worker", status="running", rank="1", source="/srv", **more):
    env = [
        "PATH=/bin",
        f"NODE_RANK={rank}",
        f"API_KEY={KEY}",
        "DSV41_PACKED_DIR=/engram",
        "NOTE=a rather private remark",
    ]
    raw = {
        "Id": hashlib.sha256(name.encode()).hexdigest(),
        "Name": f"/{name}",
        "Image": IMAGE_ID,
        "State": {"Status": status, "ExitCode": 0, "Error": "", "StartedAt": "2026-01-02T03:04:05.6Z"},
        "Config": {
            "Hostname": "spark1", "Image": "dsv41:mine", "Env": env, "Cmd": ["--api-key", KEY, "--node-rank", rank],
            "Entrypoint": ["python3", "-u", "/opt/boot.py"], "Labels": {"made.by": "hand"}, "StopSignal": "SIGINT",
            "Volumes": None,
        },
        "HostConfig": {
            "NetworkMode": "host", "Binds": [f"{source}:/models:ro"], "RestartPolicy": {"Name": "always"},
            "AutoRemove": False, "Privileged": True, "ContainerIDFile": "", "ShmSize": 2**25,
        },
        "Mounts": [{"Type": "bind", "Source": source, "Destination": "/models", "RW": False}],
        "NetworkSettings": {"Networks": {"host": {"Aliases": None}}},
    }  # fmt: skip
    for part, values in more.items():
        raw[part] |= values
    return raw


class HandDocker:
    """Containers in the Engine API's own words; `events` lists the effects in order."""

    def __init__(self, *raws):
        self.raws = {raw["Id"]: copy.deepcopy(raw) for raw in raws}
        self.images = {IMAGE_ID: Image(IMAGE_ID, ("hub/dsv41@sha256:" + "c" * 64,), {})}
        self.tags = {"dsv41:mine": IMAGE_ID}
        self.events, self.created, self.stubborn, self.spoil = [], [], False, {}

    def inspect(self, name_or_id):
        for raw in self.raws.values():
            if name_or_id in (raw["Id"], raw["Name"].lstrip("/")):
                return copy.deepcopy(raw)
        return None

    def container(self, name_or_id):
        raw = self.inspect(name_or_id)
        return None if raw is None else parse_container(raw)

    def all_ids(self):
        return list(self.raws)

    def labelled(self, labels):
        found = [parse_container(raw) for raw in self.raws.values()]
        return [container for container in found if labels.items() <= container.labels.items()]

    def image(self, reference):
        return self.images.get(self.tags.get(reference, reference))

    def signal(self, container_id, signal):
        raw = self.raws[container_id]
        self.events.append(f"{signal} {raw['Name'][1:]}")
        if not self.stubborn or signal == "SIGKILL":
            raw["State"] |= {"Status": "exited", "ExitCode": 0}
            if raw["HostConfig"]["AutoRemove"]:
                del self.raws[container_id]

    def log(self, container_id, tail=None):
        yield f"log of {self.raws[container_id]['Name']}\n".encode()

    def rename(self, container_id, name):
        self.events.append(f"rename {self.raws[container_id]['Name'][1:]} {name}")
        self.raws[container_id]["Name"] = f"/{name}"

    def set_restart_policy(self, container_id, policy):
        self.events.append(f"restart {policy['Name']}")
        self.raws[container_id]["HostConfig"]["RestartPolicy"] = dict(policy)

    def remove(self, container_id):
        self.events.append(f"remove {self.raws.pop(container_id)['Name'][1:]}")

    def create(self, name, config):
        self.created.append(copy.deepcopy(config))
        self.events.append(f"create {name}")
        identity = hashlib.sha256(f"{name}{len(self.created)}".encode()).hexdigest()
        body = copy.deepcopy(dict(config)) | self.spoil
        host = body.pop("HostConfig")
        body.pop("NetworkingConfig")
        body.setdefault("Hostname", identity[:12])
        binds = [bind.split(":") for bind in host.get("Binds") or ()]
        self.raws[identity] = {
            "Id": identity, "Name": f"/{name}", "Image": self.tags.get(body["Image"], body["Image"]), "Config": body,
            "HostConfig": {**host, "ContainerIDFile": ""},
            "Mounts": [{"Type": "bind", "Source": b[0], "Destination": b[1], "RW": b[-1] != "ro"} for b in binds],
            "State": {"Status": "created", "ExitCode": 0, "Error": "", "StartedAt": "0001-01-01T00:00:00Z"},
            "NetworkSettings": {"Networks": {}},
        }  # fmt: skip
        return identity

    def start(self, container_id):
        self.events.append(f"start {self.raws[container_id]['Name'][1:]}")
        self.raws[container_id]["State"]["Status"] = "running"


@pytest.fixture
def hand(bench, quick_path):
    """A node where someone runs rank 1 by hand, beside a file server."""
    server = raw_container("dsv41-nfs")
    server["Config"] |= {"Env": [], "Cmd": ["nfsd"], "Entrypoint": None}
    bench.docker = HandDocker(raw_container(source=str(quick_path)), server)
    return bench


def look(bench, *names):
    return bench.ask("survey", names=list(names), loggable=LOGGABLE)


def request(bench, name="dsv41-worker", **more):
    found = bench.docker.inspect(name)
    identity = found["Id"] if found else hashlib.sha256(name.encode()).hexdigest()
    return {"id": ID, "container_id": identity, "rank": 1, "deadline_s": 5, "loggable": LOGGABLE, **more}


def take(bench, **more):
    return bench.ask("adopt", **request(bench, **more))


def kept(bench, name):
    return bench.node.layout.adoption(ID) / name


# --- looking --------------------------------------------------------------------------------------------------------


def test_a_survey_describes_ranks_and_names_the_rest(hand):
    answer = look(hand)
    assert (answer["others"], answer["taken"]) == (["dsv41-nfs"], [])
    (found,) = answer["containers"]
    assert (found["name"], found["rank"], found["rank_from"], found["state"]) == (
        "dsv41-worker", 1, "NODE_RANK", "running"
    )  # fmt: skip
    assert found["image"] == {
        "ref": "dsv41:mine",
        "id": IMAGE_ID,
        "digests": ["hub/dsv41@sha256:" + "c" * 64],
    }
    assert found["env"] == {
        "API_KEY": None, "DSV41_PACKED_DIR": "/engram", "NODE_RANK": "1", "NOTE": None, "PATH": None,
    }  # fmt: skip
    assert found["command"] == ["python3", "-u", "/opt/boot.py", "--api-key", "<redacted>", "--node-rank", "1"]
    assert found["options"]["RestartPolicy"] == {"Name": "always"}
    assert hand.docker.events == []
    assert hand.tree() == {}


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        ({"Env": ["NODE_RANK=2"]}, (2, "NODE_RANK")),
        ({"Env": [], "Cmd": ["--node-rank=2"]}, (2, "--node-rank")),
        ({"Env": [], "Cmd": ["sh", "-c", "python -m x --node-rank 2 --tp 3"]}, (2, "--node-rank")),
        ({"Env": ["NODE_RANK=two"], "Cmd": ["--node-ranks", "2"]}, (None, "")),
        ({"Env": None, "Cmd": None, "Entrypoint": None}, (None, "")),
    ],
)
def test_where_a_rank_is_found(config, rank):
    assert adopt_describe.rank_of(raw_container(Config=config)) == rank


def test_a_container_of_ours_is_not_surveyed_and_not_adopted(hand, engine_labels):
    ours = raw_container("trispark-engine", Config={"Labels": engine_labels()})
    hand.docker.raws[ours["Id"]] = ours
    assert [found["name"] for found in look(hand)["containers"]] == ["dsv41-worker"]
    assert hand.refused("survey", names=["trispark-engine"])["id"] == "TS-ADOPT-OURS"
    assert hand.refused("adopt", **request(hand, "trispark-engine"))["id"] == "TS-ADOPT-OURS"


# --- secrets --------------------------------------------------------------------------------------------------------

SECRET_TEXTS = [
    pytest.param({"Env": ["NODE_RANK=1", f"HF_TOKEN={KEY}"]}, id="variable"),
    pytest.param({"Env": ["NODE_RANK=1", f"FREE_TEXT={KEY} {KEY}"]}, id="any-variable-that-is-not-loggable"),
    pytest.param({"Cmd": [f"--api-key={KEY}", "--node-rank", "1"]}, id="flag-with-equals"),
    pytest.param({"Cmd": ["--hf-token", KEY]}, id="flag-and-word"),
    pytest.param({"Cmd": ["sh", "-c", f"export WANDB_API_KEY={KEY}; exec serve"]}, id="script"),
    pytest.param({"Cmd": ["sh", "-c", f"serve --admin-api-key '{KEY}' --tp 3"]}, id="flag-in-a-script"),
    pytest.param({"Cmd": [f"--proxy=http://user:{KEY}@proxy:3128/"]}, id="address"),
    pytest.param({"Env": ["NODE_RANK=1", f"EXTRA_SGLANG_ARGS=--api-key {KEY}"]}, id="inside-a-loggable-variable"),
    pytest.param({"Labels": {"deploy.token": KEY}}, id="label"),
    pytest.param({"Env": ["NODE_RANK=1", f"API_KEY={KEY}"], "Labels": {"note": f"key {KEY}"}}, id="repeated-elsewhere"),
]


@pytest.mark.parametrize("config", SECRET_TEXTS)
def test_a_secret_leaves_no_trace_but_in_the_start_description(hand, config):
    raw = hand.docker.raws[hand.docker.inspect("dsv41-worker")["Id"]]
    raw["Config"] |= config
    said = [look(hand), look(hand, "dsv41-worker"), take(hand, check=True), take(hand), look(hand)]
    said.append(hand.ask("adopt-back", id=ID))
    assert KEY not in json.dumps(said)
    holders = [name for name, text in hand.tree().items() if KEY in text]
    assert holders == [f"adopted/{ID}/start.json"]


def test_everything_kept_is_for_root_alone(hand):
    take(hand)
    for name in (adopt.STATE, adopt.DESCRIPTION, adopt.START, adopt.LOG):
        assert stat.S_IMODE(kept(hand, name).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept(hand, "x").parent.stat().st_mode) == 0o700


def test_a_short_key_is_hidden_where_it_is_given(hand):
    raw = hand.docker.raws[hand.docker.inspect("dsv41-worker")["Id"]]
    raw["Config"]["Cmd"] = ["--api-key", "abc", "--model", "abcdef"]
    (found,) = look(hand, "dsv41-worker")["containers"]
    assert found["command"][-4:] == ["--api-key", "<redacted>", "--model", "abcdef"]


@settings(max_examples=200, deadline=None)
@given(secret=st.text(st.characters(min_codepoint=0x3041, max_codepoint=0x3090), min_size=4), data=st.data())
def test_any_secret_text_is_withheld(secret, data):
    place = data.draw(st.sampled_from(["Env", "Cmd", "Entrypoint"]))
    values = {"Env": [f"X_TOKEN={secret}"], "Cmd": ["--x-token", secret], "Entrypoint": [f"--password={secret}"]}
    raw = raw_container(Config={place: values[place]})
    assert secret not in json.dumps(adopt_describe.describe(raw, None, LOGGABLE), ensure_ascii=False)


# --- taking over ----------------------------------------------------------------------------------------------------


def test_a_take_over_describes_stops_and_keeps(hand, quick_path):
    before = hand.docker.inspect("dsv41-worker")
    answer = take(hand)
    assert (answer["changed"], answer["removed"], answer["killed"]) == (True, False, False)
    assert hand.docker.events == ["restart no", "SIGINT dsv41-worker"]
    assert hand.docker.inspect("dsv41-worker")["State"]["Status"] == "exited"
    assert kept(hand, adopt.LOG).read_text() == "log of /dsv41-worker\n"
    start = json.loads(kept(hand, adopt.START).read_text())
    assert start["name"] == "dsv41-worker"
    assert start["body"]["Env"] == before["Config"]["Env"]
    assert start["body"]["HostConfig"]["RestartPolicy"] == {"Name": "always"}
    assert start["body"]["Image"] == "dsv41:mine"
    described = json.loads(kept(hand, adopt.DESCRIPTION).read_text())
    assert described["mounts"] == [{"type": "bind", "source": str(quick_path), "target": "/models", "read_only": True}]
    tree = hand.tree()
    assert take(hand)["changed"] is False
    assert hand.tree() == tree
    (taken,) = look(hand)["taken"]
    assert (taken["id"], taken["phase"], taken["container"]) == (ID, "taken", "exited")


def test_check_mode_touches_nothing(hand):
    answer = take(hand, check=True)
    assert (answer["changed"], hand.docker.events, hand.tree()) == (True, [], {})
    assert answer["diff"]["after"] == "dsv41-worker ended and kept\n"


def test_an_engine_that_does_not_listen_is_killed_after_its_time(hand):
    hand.docker.stubborn = True
    answer = take(hand)
    assert (answer["killed"], hand.docker.events[-1]) == (True, "SIGKILL dsv41-worker")
    assert answer["seconds"] >= 5


def test_our_name_becomes_free(hand):
    raw = raw_container("trispark-engine")
    hand.docker.raws = {raw["Id"]: raw}
    assert hand.refused("stop", deadline_s=1)["id"] == "TS-AGENT-FOREIGN"
    hand.ask("adopt", **request(hand, "trispark-engine"))
    assert hand.docker.events[-1] == f"rename trispark-engine trispark-adopted-{ID}"
    assert hand.ask("stop", deadline_s=1)["changed"] is False
    hand.ask("adopt-back", id=ID)
    assert hand.docker.inspect("trispark-engine")["State"]["Status"] == "running"


def test_a_removal_is_asked_for_by_itself(hand):
    take(hand)
    answer = take(hand, remove=True)
    assert (answer["changed"], answer["removed"], hand.docker.events[-1]) == (True, True, "remove dsv41-worker")
    assert take(hand, remove=True)["changed"] is False


@pytest.mark.parametrize(
    ("more", "name", "rank", "word"),
    [
        ({}, "dsv41-nfs", 1, "NOENGINE"),
        ({}, "dsv41-worker", 2, "NOENGINE"),
        ({}, "no-such", 1, "GONE"),
        ({"HostConfig": {"AutoRemove": True}}, "dsv41-worker", 1, "AUTOREMOVE"),
    ],
)
def test_what_is_not_taken_over(hand, more, name, rank, word):
    raw = hand.docker.raws[hand.docker.inspect("dsv41-worker")["Id"]]
    for part, values in more.items():
        raw[part] |= values
    error = hand.refused("adopt", **request(hand, name, rank=rank))
    assert error["id"] == f"TS-ADOPT-{word}"
    assert (hand.docker.events, sorted(hand.tree())) == ([], ["lock"])


INEXACT = [
    pytest.param({"Mounts": [{"Type": "volume", "Name": "f" * 64, "Destination": "/state", "RW": True}]}, id="volume"),
    pytest.param(
        {
            "HostConfig": {"NetworkMode": "one"},
            "NetworkSettings": {"Networks": {"one": {"Aliases": []}, "two": {"Aliases": []}}},
        },
        id="networks",
    ),
    pytest.param({"HostConfig": {"Links": ["/db:/x/db"]}}, id="links"),
]


@pytest.mark.parametrize("more", INEXACT)
def test_what_could_not_be_made_anew_is_not_removed(hand, more):
    raw = hand.docker.raws[hand.docker.inspect("dsv41-worker")["Id"]]
    for part, values in more.items():
        raw[part] = values if isinstance(values, list) else raw[part] | values
    error = hand.refused("adopt", **request(hand, remove=True))
    assert (error["id"], hand.docker.events) == ("TS-ADOPT-INEXACT", [])
    take(hand)
    assert hand.ask("adopt-back", id=ID)["how"] == "kept"


def test_a_take_over_killed_at_any_step_is_finished_by_the_next(hand, crashes):
    """The Engine of this test is in the memory of the process that dies, so it is asked again from its beginning."""
    docker = hand.docker
    original = copy.deepcopy(docker.raws)

    def reset():
        docker.raws = copy.deepcopy(original)
        hand.node.disk.remove_tree(hand.node.layout.root)

    def operation(disk: Disk):
        from trispark_node import cli

        answer, code = cli.answer(hand.with_disk(disk), "adopt", json.dumps(request(hand)))
        assert code == 0, answer

    for where in crashes(operation, reset):
        assert take(hand)["id"] == ID, where
        assert take(hand)["changed"] is False, where
        assert hand.ask("adopt-back", id=ID)["how"] == "kept", where


def test_a_way_back_killed_at_any_step_is_finished_by_the_next(hand, crashes):
    docker = hand.docker
    original = copy.deepcopy(docker.raws)

    def reset():
        docker.raws = copy.deepcopy(original)
        hand.node.disk.remove_tree(hand.node.layout.root)
        take(hand)

    def operation(disk: Disk):
        from trispark_node import cli

        answer, code = cli.answer(hand.with_disk(disk), "adopt-back", json.dumps({"id": ID}))
        assert code == 0, answer

    for where in crashes(operation, reset):
        answer = hand.ask("recover")
        assert {each["outcome"] for each in answer["recovered"]} <= {"left"}, where
        assert hand.ask("adopt-back", id=ID)["how"] == "kept", where
        assert hand.docker.inspect("dsv41-worker")["State"]["Status"] == "running", where
        assert hand.ask("adopt-back", id=ID)["changed"] is False, where


# --- the way back ---------------------------------------------------------------------------------------------------


def test_the_kept_container_is_started_as_it_was(hand):
    before = hand.docker.inspect("dsv41-worker")
    take(hand)
    hand.docker.events.clear()
    assert hand.ask("adopt-back", id=ID, check=True)["changed"] is True
    assert hand.docker.events == []
    answer = hand.ask("adopt-back", id=ID)
    assert (answer["changed"], answer["how"], answer["container_id"]) == (True, "kept", before["Id"])
    assert hand.docker.events == ["restart always", "start dsv41-worker"]
    after = hand.docker.inspect("dsv41-worker")
    assert (after["Config"], after["State"]["Status"]) == (before["Config"], "running")
    assert after["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert hand.ask("adopt-back", id=ID)["changed"] is False
    assert hand.refused("adopt", **request(hand))["id"] == "TS-ADOPT-RETURNED"


def test_a_removed_container_is_made_anew_and_compared(hand):
    before = hand.docker.inspect("dsv41-worker")
    take(hand, remove=True)
    answer = hand.ask("adopt-back", id=ID)
    assert (answer["how"], hand.docker.events[-2:]) == ("made anew", ["create dsv41-worker", "start dsv41-worker"])
    after = hand.docker.inspect("dsv41-worker")
    assert adopt_describe.comparable(after) == adopt_describe.comparable(before)
    assert split_env(after["Config"]["Env"]) == split_env(before["Config"]["Env"])
    assert hand.ask("adopt-back", id=ID)["changed"] is False


def test_a_tag_that_moved_is_not_followed(hand):
    hand.docker.tags["dsv41:mine"] = "sha256:" + "9" * 64
    take(hand, remove=True)
    hand.ask("adopt-back", id=ID)
    assert hand.docker.created[0]["Image"] == IMAGE_ID


def test_one_that_removes_itself_comes_back(hand):
    hand.docker.raws[hand.docker.inspect("dsv41-worker")["Id"]]["HostConfig"] |= {
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    answer = take(hand, remove=True)
    assert (answer["removed"], kept(hand, adopt.LOG).read_text()) == (True, "log of /dsv41-worker\n")
    assert hand.ask("adopt-back", id=ID)["how"] == "made anew"


def spoil_kept(bench):
    bench.docker.raws[bench.docker.inspect("dsv41-worker")["Id"]]["Config"]["Env"].append("X=1")


def run_ours(bench):
    labels = {"trispark": "1", "trispark.role": "engine", "trispark.generation": "g0", "trispark.boot": "b"}
    raw = raw_container("trispark-engine", Config={"Labels": labels})
    bench.docker.raws[raw["Id"]] = raw


def another_of_the_name(bench):
    bench.docker.rename(bench.docker.inspect("dsv41-worker")["Id"], "aside")
    raw = raw_container()
    raw["Id"] = "d" * 64
    bench.docker.raws[raw["Id"]] = raw


def lose_mount(bench):
    raw = bench.docker.raws[bench.docker.inspect("dsv41-worker")["Id"]]
    raw["Mounts"][0]["Source"] = "/no/such/place"


@pytest.mark.parametrize(
    ("obstacle", "word"),
    [
        (spoil_kept, "CHANGED"),
        (run_ours, "RUNNING"),
        (another_of_the_name, "NAME"),
        (lose_mount, "MOUNT"),
        (lambda bench: kept(bench, adopt.START).write_text("{"), "START"),
        (lambda bench: kept(bench, adopt.START).unlink(), "START"),
        (lambda bench: kept(bench, adopt.STATE).write_text("[]"), "DAMAGED"),
    ],
)
def test_what_stands_in_the_way_back(hand, obstacle, word):
    take(hand)
    obstacle(hand)
    hand.docker.events.clear()
    error = hand.refused("adopt-back", id=ID)
    assert (error["id"], hand.docker.events) == (f"TS-ADOPT-{word}", [])
    assert KEY not in json.dumps(error)


def test_an_image_that_is_gone_is_named(hand):
    take(hand, remove=True)
    hand.docker.images.clear()
    assert hand.refused("adopt-back", id=ID)["id"] == "TS-ADOPT-IMAGE"


def test_a_container_that_came_out_otherwise_does_not_run(hand):
    take(hand, remove=True)
    hand.docker.spoil = {"User": "nobody"}
    assert hand.refused("adopt-back", id=ID)["id"] == "TS-ADOPT-DIFFERS"
    assert hand.docker.events[-1] == "remove dsv41-worker"
    assert hand.docker.inspect("dsv41-worker") is None


def test_an_id_that_nobody_knows(hand):
    assert hand.refused("adopt-back", id=ID)["id"] == "TS-ADOPT-UNKNOWN"
    take(hand)
    assert ID in hand.refused("adopt-back", id="a" + "2" * 16)["expected"]


@pytest.mark.parametrize("values", [{"id": "../x"}, {"id": "a1"}, {"container_id": "dsv41"}, {"rank": -1}, {"more": 1}])
def test_a_request_that_is_none(hand, values):
    assert hand.refused("adopt", **(request(hand) | values))["id"] == "TS-AGENT-REQUEST"


def test_a_stray_directory_is_no_take_over(hand):
    place = Path(hand.node.layout.adopted)
    (place / "notes").mkdir(parents=True)
    (place / ID).mkdir()
    assert look(hand)["taken"] == []

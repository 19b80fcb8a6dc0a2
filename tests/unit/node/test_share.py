"""The checkpoint's share on one node: mount table and programs are stand-ins, files and reads are real."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import cli, share, share_bounded, share_mounts, share_read
from trispark_node.share_mounts import Share, parse_mounts

HEAD = "10.77.1.10"
ESCAPES = str.maketrans({" ": "\\040", "\\": "\\134"})
PROGRAMS = {
    # Mounting puts the head's files into place and a line into the mount table; unmounting takes both away.
    "sshfs": """#!/bin/sh
set -eu
echo "sshfs $*" >>"$LOG"
[ ! -e "$REFUSE" ] || { cat "$REFUSE" >&2; exit 1; }
for word in $(echo "$6" | tr , ' '); do case $word in fsname=*) source=${word#fsname=} ;; esac; done
cp "$HEAD_DIRECTORY"/* "$4"/
echo "99 1 0:77 / $4 ro,nosuid - fuse.sshfs $source ro,user_id=0" >>"$TABLE"
""",
    "umount": """#!/bin/sh
set -eu
echo "umount $*" >>"$LOG"
for target; do :; done
rm -f "$target"/*
grep -v " $target " "$TABLE" >"$TABLE.new" || true
mv "$TABLE.new" "$TABLE"
""",
    "exportfs": """#!/bin/sh
echo "exportfs $*" >>"$LOG"
""",
}


class Fleet:
    """One worker, and the head's directory as it is behind the share."""

    def __init__(self, bench, checkpoint, path: Path, programs: Path, monkeypatch) -> None:
        self.bench, self.checkpoint = bench, checkpoint
        self.head = checkpoint.directory
        (self.head / "config.json").write_text('{"model_type": "lab"}')
        self.directory = path / "srv" / "models" / "V4"
        self.log, self.refuse = path / "log", path / "refuse"
        process = bench.procfs / "self"
        (process / "ns").mkdir(parents=True)
        (process / "ns" / "mnt").symlink_to("mnt:[1]")
        self.table = process / "mountinfo"
        self.table.write_text("20 1 254:0 / / rw,relatime - ext4 /dev/root rw\n")
        boot = bench.procfs / "sys" / "kernel" / "random"
        boot.mkdir(parents=True, exist_ok=True)
        self.boot_id = boot / "boot_id"
        self.boot_id.write_text("one\n")
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.programs = programs
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        known = {"LOG": self.log, "REFUSE": self.refuse, "HEAD_DIRECTORY": self.head, "TABLE": self.table}
        run = share_bounded.command
        monkeypatch.setattr(
            share_bounded, "command", lambda argv, bound: run(argv, bound, {k: str(v) for k, v in known.items()})
        )
        self.exports = path / "exports.d" / "trispark-checkpoint.exports"
        monkeypatch.setattr(share, "EXPORTS", self.exports)
        monkeypatch.setattr(share, "FOREIGN_EXPORTS", (path / "exports", path / "exports.d"))
        self.foreign_exports = path / "exports"

    def share(self, kind="fuse", rank=1, directory=None, **more):
        values = {"kind": kind, "directory": str(directory or self.directory)}
        if kind != "local":
            values |= {"server": HEAD} if rank else {"clients": ["10.77.1.11", "10.77.2.12"]}
        if kind == "fuse":
            keys = {"identity_file": "/run/key", "known_hosts_file": "/run/known"}
            values |= {"user": "trispark-share", "port": 22, **keys}
        if kind == "nfs" and rank == 0:
            values["managed"] = True
        return values | more

    def request(self, action, rank=1, kind="fuse", **more):
        chosen = {key: more.pop(key) for key in ("directory", "managed", "server") if key in more}
        return {"action": action, "rank": rank, "share": self.share(kind, rank, **chosen), "deadline_s": 10, **more}

    def ask(self, action, rank=1, kind="fuse", **more):
        return self.bench.ask("share", **self.request(action, rank, kind, **more))

    def refused(self, action, rank=1, kind="fuse", **more):
        return self.bench.refused("share", **self.request(action, rank, kind, **more))

    def reference(self, **more):
        return {"files": self.ask("read", 0, directory=self.head, **more)["files"]}

    def verify(self, rank=1, kind="fuse", **more):
        return self.ask("verify", rank, kind, reference=self.reference(), **more)

    def not_verified(self, rank=1, kind="fuse", reference=None, **more):
        return self.refused("verify", rank, kind, reference=reference or self.reference(), **more)

    def mount_line(self, source, fstype="fuse.sshfs", options="ro"):
        with self.table.open("a") as file:
            file.write(
                f"98 1 0:66 / {str(self.directory).translate(ESCAPES)} {options} - {fstype} {source} {options}\n"
            )

    def ran(self):
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def fleet(bench, checkpoint, quick_path, tmp_path, monkeypatch):
    return Fleet(bench, checkpoint, quick_path, tmp_path / "programs", monkeypatch)


@pytest.fixture
def mounted(fleet):
    fleet.ask("mount")
    return fleet


SOURCE = f"trispark:trispark-share@{HEAD}:"


# --- mounting -------------------------------------------------------------------------------------------------------


def test_a_share_is_mounted_once_and_then_found(fleet):
    answer = fleet.ask("mount")
    assert (answer["changed"], answer["by"]) == (True, "trispark")
    assert answer["source"] == SOURCE + str(fleet.directory)
    before = fleet.bench.tree()
    assert fleet.ask("mount")["changed"] is False
    assert fleet.bench.tree() == before
    assert fleet.ran() == ["sshfs"]
    verified = fleet.verify()
    assert verified["revision"] == fleet.ask("read", 0, directory=fleet.head)["revision"]
    assert (verified["files"], verified["changed"]) == (3, False)


def test_check_mode_mounts_nothing(fleet):
    answer = fleet.ask("mount", check=True)
    assert answer["changed"] is True
    assert "not mounted" in answer["diff"]["before"]
    assert not fleet.directory.exists()
    assert fleet.ran() == []


def test_files_of_the_node_are_never_hidden_by_a_mount(fleet):
    fleet.directory.mkdir(parents=True)
    (fleet.directory / "model.safetensors").write_bytes(b"mine")
    error = fleet.refused("mount")
    assert (error["id"], fleet.ran()) == ("TS-SHARE-OCCUPIED", [])


def test_a_link_in_its_place_is_refused(fleet, quick_path):
    fleet.directory.parent.mkdir(parents=True)
    fleet.directory.symlink_to(quick_path)
    assert fleet.refused("mount")["id"] == "TS-SHARE-OCCUPIED"


def test_a_mount_of_someone_else_is_left_alone(fleet):
    fleet.directory.mkdir(parents=True)
    fleet.mount_line("192.0.2.1:/", "nfs4")
    for action in ("mount", "remove"):
        error = fleet.refused(action)
        assert (error["id"], error["observed"]) == ("TS-SHARE-FOREIGN", "192.0.2.1:/ (nfs4)")
    assert fleet.ran() == []


def test_the_same_source_mounted_by_someone_else_serves_but_stays_theirs(fleet):
    fleet.directory.mkdir(parents=True)
    fleet.mount_line(SOURCE + str(fleet.directory))
    assert fleet.ask("mount")["by"] == "someone else"
    assert fleet.refused("remove")["id"] == "TS-SHARE-FOREIGN"


def test_after_a_reboot_the_mount_is_missing_and_comes_back(mounted):
    mounted.table.write_text("")
    for file in mounted.directory.iterdir():
        file.unlink()
    mounted.boot_id.write_text("two\n")
    error = mounted.not_verified()
    assert error["id"] == "TS-SHARE-MISSING"
    assert "empty directory" in error["observed"]
    assert "./trispark play share" in error["remedy"]
    assert mounted.ask("mount")["changed"] is True
    mounted.verify()


def test_a_mount_that_another_boot_found_is_not_ours(mounted):
    mounted.boot_id.write_text("two\n")
    assert mounted.refused("remove")["id"] == "TS-SHARE-FOREIGN"


def test_a_stale_mount_is_mounted_anew(mounted, monkeypatch):
    monkeypatch.setattr(share, "_answers", lambda _share: False)
    assert mounted.ask("mount")["changed"] is True
    assert mounted.ran() == ["sshfs", "umount", "sshfs"]


def test_another_server_is_mounted_anew(mounted):
    assert mounted.ask("mount", server="10.77.0.10")["source"].startswith("trispark:trispark-share@10.77.0.10:")
    assert mounted.ran() == ["sshfs", "umount", "sshfs"]


@pytest.mark.parametrize("action", ["remove", "mount"])
def test_a_share_in_use_is_never_taken_from_an_engine(mounted, engine_labels, monkeypatch, action):
    monkeypatch.setattr(share, "_answers", lambda _share: False)
    mounted.bench.docker.add("trispark-engine", labels=engine_labels())
    error = mounted.refused(action)
    assert (error["id"], mounted.ran()) == ("TS-SHARE-INUSE", ["sshfs"])
    assert "trispark-engine" in error["observed"]


def test_a_share_is_never_taken_from_a_container_of_someone_else(mounted):
    process = mounted.bench.procfs / "4711"
    (process / "ns").mkdir(parents=True)
    (process / "ns" / "mnt").symlink_to("mnt:[2]")
    (process / "mountinfo").write_text(f"5 1 0:77 / /models ro - fuse.sshfs {SOURCE} ro\n")
    error = mounted.refused("remove")
    assert (error["id"], error["observed"]) == ("TS-SHARE-INUSE", "PIDs 4711")


@pytest.mark.parametrize("propagation", ["master:12 ", "shared:4 ", "shared:4 master:12 "])
def test_a_service_in_whose_namespace_the_mount_follows_does_not_hold_it(mounted, propagation):
    process = mounted.bench.procfs / "812"
    (process / "ns").mkdir(parents=True)
    (process / "ns" / "mnt").symlink_to("mnt:[3]")
    (process / "mountinfo").write_text(f"5 1 0:77 / {mounted.directory} ro {propagation}- fuse.sshfs {SOURCE} ro\n")
    assert mounted.ask("remove")["changed"] is True


def test_an_ended_engine_does_not_hold_it(mounted, engine_labels):
    mounted.bench.docker.add("trispark-engine", "exited", engine_labels())
    assert mounted.ask("remove")["changed"] is True


def test_removing_takes_the_mount_and_leaves_the_directory(mounted):
    assert mounted.ask("remove", check=True)["changed"] is True
    assert mounted.ran() == ["sshfs"]
    assert mounted.ask("remove")["changed"] is True
    assert mounted.directory.is_dir()
    assert not mounted.bench.node.layout.share.exists()
    assert mounted.ask("remove")["changed"] is False
    assert mounted.not_verified()["id"] == "TS-SHARE-MISSING"


@pytest.mark.parametrize("action", ["mount", "remove"])
def test_killed_at_any_step_the_same_again_mounts_it_or_takes_it_away(fleet, crashes, action):
    """The mount table outlives the agent; a mount that it did not come to note is not known as ours, but serves."""
    request = fleet.request(action)

    def reset():
        if fleet.directory.exists():
            fleet.table.write_text("20 1 254:0 / / rw,relatime - ext4 /dev/root rw\n")
            shutil.rmtree(fleet.directory)
        fleet.bench.node.layout.share.unlink(missing_ok=True)
        if action == "remove":
            fleet.ask("mount")

    for where in crashes(lambda disk: cli.answer(fleet.bench.with_disk(disk), "share", json.dumps(request)), reset):
        answer = fleet.bench.ask("recover")
        assert {each["outcome"] for each in answer["recovered"]} <= {"undone"}, where
        assert fleet.ask(action)["mounted"] is (action == "mount"), where
        assert fleet.ask(action)["changed"] is False, where
        assert bool(share_mounts.mounted_at(fleet.bench.procfs, str(fleet.directory))) is (action == "mount"), where
        if action == "mount":
            fleet.verify()


def test_a_share_left_by_an_earlier_declaration_is_no_copy(mounted):
    error = mounted.not_verified(kind="local")
    assert (error["id"], error["remedy"]) == ("TS-SHARE-LEFTOVER", "./trispark play share -e remove=true")
    assert mounted.ask("remove", kind="local")["changed"] is True


def test_what_the_program_says_is_handed_on(fleet):
    fleet.refuse.write_text("read: Connection reset by peer\n")
    error = fleet.refused("mount")
    assert (error["id"], error["observed"]) == ("TS-SHARE-MOUNT", "1: read: Connection reset by peer")


def test_a_missing_program_is_named(fleet, monkeypatch):
    (fleet.programs / "sshfs").unlink()
    monkeypatch.setenv("PATH", str(fleet.programs))
    error = fleet.refused("mount")
    assert (error["id"], "sshfs" in error["remedy"]) == ("TS-SHARE-PROGRAM", True)


def test_a_program_that_never_ends_is_bounded(fleet):
    (fleet.programs / "sshfs").write_text("#!/bin/sh\nsleep 60\n")
    assert fleet.refused("mount", deadline_s=0.3)["id"] == "TS-SHARE-TIMEOUT"


def test_a_program_that_lies_is_caught(fleet):
    (fleet.programs / "sshfs").write_text("#!/bin/sh\n")
    assert fleet.refused("mount")["id"] == "TS-SHARE-MOUNT"


# --- what a worker reads --------------------------------------------------------------------------------------------


def weights(fleet):
    return sorted(fleet.directory.glob("*.safetensors"))[0]


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        pytest.param(lambda f: flip(weights(f), -1), "CONTENT", id="last-byte"),
        pytest.param(lambda f: flip(weights(f), 12), "REVISION", id="header"),
        pytest.param(lambda f: weights(f).write_bytes(weights(f).read_bytes()[:-1]), "REVISION", id="cut"),
        pytest.param(lambda f: weights(f).unlink(), "REVISION", id="absent"),
        pytest.param(lambda f: shutil.copy(weights(f), f.directory / "z.safetensors"), "REVISION", id="surplus"),
        pytest.param(lambda f: (f.directory / "config.json").write_text("{}"), "REVISION", id="config"),
        pytest.param(
            lambda f: [path.rename(path.with_suffix(".bin")) for path in f.directory.iterdir()],
            "EXPORT",
            id="elsewhere",
        ),
        pytest.param(lambda f: [path.unlink() for path in f.directory.iterdir()], "EXPORT", id="empty-export"),
    ],
)
def test_other_content_is_refused_with_rank_and_both_sides(mounted, damage, word):
    damage(mounted)
    error = mounted.not_verified()
    assert error["id"] == f"TS-SHARE-{word}"
    assert error["where"].startswith(f"rank 1, {mounted.directory}")
    assert all(error.values())


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ({"source": "10.77.2.10:/", "fstype": "nfs4"}, "EXPORT"),
        ({"source": SOURCE + "/srv/other"}, "EXPORT"),
        ({"source": None, "options": "rw"}, "WRITABLE"),
    ],
)
def test_a_mount_of_something_else_is_refused(fleet, line, word):
    """Also when it reads as the head does: what is mounted there may change with whoever mounted it."""
    shutil.copytree(fleet.head, fleet.directory)
    fleet.mount_line(**{**line, "source": line["source"] or SOURCE + str(fleet.directory)})
    assert fleet.not_verified()["id"] == f"TS-SHARE-{word}"


@pytest.mark.parametrize("prepare", [lambda _f: None, lambda f: f.directory.mkdir(parents=True)])
def test_a_copy_that_is_not_there(fleet, prepare):
    prepare(fleet)
    assert fleet.not_verified(kind="local")["id"] in ("TS-SHARE-SOURCE", "TS-SHARE-MISSING")


def test_a_copy_is_compared_as_a_share_is(fleet):
    shutil.copytree(fleet.head, fleet.directory)
    assert fleet.verify(kind="local")["files"] == 3
    flip(weights(fleet), -5)
    assert fleet.not_verified(kind="local")["id"] == "TS-SHARE-CONTENT"


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.ESTALE, "STALE"), (errno.ENOTCONN, "STALE"), (errno.EIO, "STALE"), (errno.EACCES, "READ")],
)
def test_what_the_kernel_answers_of_a_lost_server(mounted, monkeypatch, number, word):
    reference = mounted.reference()

    def lost(*_):
        raise OSError(number, os.strerror(number), str(mounted.directory))

    monkeypatch.setattr(share_read, "read_again", lost)
    error = mounted.not_verified(reference=reference)
    assert error["id"] == f"TS-SHARE-{word}"
    assert errno.errorcode[number] in error["observed"]


def test_a_read_that_never_ends_is_refused_after_the_bound(mounted):
    reference = mounted.reference()
    weights(mounted).unlink()
    os.mkfifo(mounted.directory / "block")  # opened with O_NONBLOCK: so the hang is made where the kernel would
    monkey = mounted.directory / "block"

    def hang(*_):
        return monkey.read_bytes().decode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_read, "read_again", hang)
        error = mounted.not_verified(reference=reference, deadline_s=0.3)
    assert (error["id"], error["expected"]) == ("TS-SHARE-TIMEOUT", "an answer within 0.3 s")


@pytest.mark.parametrize("keep", ["config.json", "model-00001.safetensors", None])
def test_a_head_without_a_checkpoint_is_named(fleet, quick_path, keep):
    place = quick_path / "other"
    place.mkdir()
    if keep:
        shutil.copy(fleet.head / keep, place)
    assert fleet.refused("read", 0, directory=place)["id"] == "TS-SHARE-SOURCE"
    assert fleet.refused("read", 0, directory=quick_path / "gone")["id"] == "TS-SHARE-SOURCE"


def test_the_same_seed_reads_the_same_places_and_another_one_others(fleet):
    fleet.checkpoint.write("model-00099.safetensors", [("big", "U8", [3_000_000], os.urandom(3_000_000))])
    one, again, other = (fleet.reference(seed=seed)["files"] for seed in ("a", "a", "b"))
    assert one == again
    places = [[piece["offset"] for file in files for piece in file["ranges"]] for files in (one, other)]
    assert places[0] != places[1]
    big = next(file for file in one if file["name"] == "model-00099.safetensors")
    assert len(big["ranges"]) == 8
    assert big["ranges"][-1]["offset"] + big["ranges"][-1]["length"] == big["size"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_a_small_checkpoint_is_found(mounted, data):
    path = data.draw(st.sampled_from(sorted(mounted.directory.iterdir())))
    offset = data.draw(st.integers(0, path.stat().st_size - 1))
    reference = mounted.reference()
    flip(path, offset)
    try:
        error = mounted.not_verified(reference=reference)
    finally:
        flip(path, offset)
    assert error["id"] in ("TS-SHARE-CONTENT", "TS-SHARE-REVISION")
    assert path.name in error["where"]


# --- the head's export ----------------------------------------------------------------------------------------------


def serving_nfs(fleet):
    (fleet.bench.procfs / "fs" / "nfsd").mkdir(parents=True)
    (fleet.bench.procfs / "fs" / "nfsd" / "threads").write_text("8\n")


def test_the_head_exports_its_root_to_the_workers_alone(fleet):
    serving_nfs(fleet)
    request = {"rank": 0, "kind": "nfs", "directory": fleet.head}
    assert fleet.ask("export", **request)["changed"] is True
    options = "(ro,sync,no_subtree_check,no_root_squash,insecure,fsid=0)"
    assert fleet.exports.read_text().splitlines()[1:] == [f"{fleet.head} 10.77.1.11{options} 10.77.2.12{options}"]
    assert fleet.ask("export", **request)["changed"] is False
    assert fleet.ask("remove", **request)["changed"] is True
    assert not fleet.exports.exists()
    assert fleet.ask("remove", **request)["changed"] is False
    assert fleet.ran() == ["exportfs", "exportfs"]


def test_a_head_that_serves_no_nfs_is_refused(fleet):
    assert fleet.refused("export", 0, "nfs", directory=fleet.head)["id"] == "TS-SHARE-SERVER"


def test_another_root_of_the_head_is_not_displaced(fleet):
    serving_nfs(fleet)
    fleet.foreign_exports.write_text("# fsid=0\n/srv/other *(ro,fsid=0)\n")
    assert fleet.refused("export", 0, "nfs", directory=fleet.head)["id"] == "TS-SHARE-FOREIGN"
    assert not fleet.exports.exists()


OTHERWISE = {
    "a copy of its own": {"kind": "local"},
    "sshfs": {"kind": "fuse"},
    "someone else exports": {"kind": "nfs", "managed": False},
}


@pytest.fixture
def exported(fleet):
    serving_nfs(fleet)
    fleet.ask("export", 0, "nfs", directory=fleet.head)
    return fleet


@pytest.mark.parametrize("declared", OTHERWISE)
@pytest.mark.parametrize("action", ["withdraw", "remove"])
def test_an_export_does_not_outlive_its_declaration(exported, action, declared):
    """It lets root of the workers in (no_root_squash)."""
    request = exported.request(action, 0, **OTHERWISE[declared], directory=exported.head)
    assert exported.bench.ask("share", **request, check=True)["changed"] is True
    assert exported.exports.exists()
    assert exported.bench.ask("share", **request)["changed"] is True
    assert not exported.exports.exists()
    assert exported.ran() == ["exportfs", "exportfs"]
    assert exported.bench.ask("share", **request)["changed"] is False


def test_an_export_that_is_declared_is_not_withdrawn(exported):
    assert exported.ask("withdraw", 0, "nfs", directory=exported.head)["changed"] is False
    assert exported.exports.exists()


def test_a_worker_withdraws_nothing(exported):
    assert exported.ask("withdraw", 1, "fuse")["changed"] is False
    assert exported.exports.exists()


def test_an_export_that_is_not_ours_to_make_is_not_touched(fleet):
    assert fleet.ask("export", 0, "nfs", directory=fleet.head, managed=False)["changed"] is False
    assert fleet.ask("remove", 0, "nfs", directory=fleet.head, managed=False)["changed"] is False
    assert fleet.ran() == []


def test_the_pseudo_root_is_mounted_hard_and_read_only():
    """With fsid=0 a path below the root is not found (I33)."""
    nfs = Share("nfs", "/srv/models/V4", HEAD, (), False, "", 0, "", "")
    assert nfs.mount_argv() == [
        "mount", "-t", "nfs4", "-o", "ro,nfsvers=4.2,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600",
        f"{HEAD}:/", "/srv/models/V4",
    ]  # fmt: skip


def test_sshfs_knows_its_host_and_asks_nobody():
    fuse = Share("fuse", "/srv/models/V4", "fd00::1", (), False, "share", 2222, "/k", "/h")
    argv = fuse.mount_argv()
    assert argv[:5] == ["sshfs", "-F", "/dev/null", "share@[fd00::1]:/srv/models/V4", "/srv/models/V4"]
    options = argv[6].split(",")
    assert options[0] == "ro"
    assert {"port=2222", "StrictHostKeyChecking=yes", "UserKnownHostsFile=/h", "BatchMode=yes"} <= set(options)
    assert "fsname=trispark:share@[fd00::1]:/srv/models/V4" in options


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"action": "format"},
        {"share": {"directory": "/srv/a b"}},
        {"share": {"directory": "/srv/a,rw"}},
        {"share": {"kind": "smb"}},
        {"share": {"server": None}},
        {"share": {"server": "head; reboot"}},
        {"share": {"user": "-oProxyCommand=x"}},
        {"share": {"identity_file": "/k,rw"}},
        {"share": {"surplus": 1}},
        {"share": {"clients": ["*"]}},
        {"ranges": 0},
    ],
    ids=str,
)
def test_a_request_that_is_none(fleet, change):
    request = fleet.request("mount")
    request["share"] |= change.get("share", {})
    request |= {key: value for key, value in change.items() if key != "share"}
    assert fleet.bench.refused("share", **request)["id"] == "TS-AGENT-REQUEST"
    assert fleet.ran() == []


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400))
def test_any_mount_table_is_read(text):
    parse_mounts(text)


def test_a_mount_table_with_escapes_and_several_mounts_on_one_place():
    lines = [
        "1 0 0:5 / /mnt/a\\040b rw shared:1 - nfs4 h:/x rw",
        "2 0 0:6 / /mnt/a\\040b rw - fuse.sshfs s\\040t ro",
    ]
    found = parse_mounts("\n".join(lines))
    assert [(mount.target, mount.source, mount.read_only) for mount in found] == [
        ("/mnt/a b", "h:/x", False),
        ("/mnt/a b", "s t", True),
    ]


def test_this_machines_own_table():
    assert share_mounts.mounted_at(Path("/proc"), "/proc").fstype == "proc"


def test_a_kept_identity_that_is_no_json_makes_nothing_ours(mounted):
    mounted.bench.node.layout.share.write_text("{")
    assert mounted.refused("remove")["id"] == "TS-SHARE-FOREIGN"


def test_the_answer_to_read_is_what_verify_takes(fleet):
    shutil.copytree(fleet.head, fleet.directory)
    text = json.dumps(fleet.reference())
    assert fleet.ask("verify", kind="local", reference=json.loads(text))["files"] == 3

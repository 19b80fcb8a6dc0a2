"""A node whose first process is systemd: a container with systemd, Python and a Docker Engine of its own.

Made of distribution packages once and kept as an image of this machine's Engine (label `trispark-test-unit`; remove it
with `docker image rm`). Ubuntu 24.04, as a Spark has it, where the archive's keys are at hand (package ubuntu-keyring,
or TRISPARK_UBUNTU_KEYRING names the file), else Debian 12. It has no network, and what runs in it is asked by
`docker exec` alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LABEL = "trispark-test-unit"
PATIENCE = float(os.environ.get("TRISPARK_TEST_PATIENCE", "1"))
UNIT = "trispark-boot.service"
STATE = "/var/lib/trispark"
AGENT = f"{STATE}/bin/trispark-node"
BOOTSTRAP_S = 540.0
BOOTED_S = 120.0
PACKAGES = ("systemd-sysv", "dbus", "python3", "docker.io", "iptables", "busybox-static")
ENGINE_IMAGE = "engine"
CAPABILITIES = (
    "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD", "NET_RAW", "SYS_CHROOT", "SETFCAP", "DAC_READ_SEARCH",
    "AUDIT_WRITE",
)  # fmt: skip
"""Without `--privileged`, which an Engine that lacks a capability itself cannot give; as the lab's nodes."""
START = """
mount -o remount,rw /proc/sys
mount -o remount,bind,rw /sys/fs/cgroup
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
  for each in /sys/fs/cgroup/*; do [ -L "$each" ] || mount -o remount,bind,rw "$each" 2>/dev/null || true; done
fi
exec /sbin/init
"""
PREPARE = """
set -e
mkdir -p /var/log/journal /etc/docker
echo '{"bridge": "none", "iptables": false, "ip6tables": false}' > /etc/docker/daemon.json
systemctl mask systemd-networkd-wait-online.service systemd-resolved.service systemd-timesyncd.service
"""
"""Engines run with the node's own network, as in production: the Engine needs no bridge."""


class Unable(Exception):
    """Why a systemd cannot be run on this machine."""


@dataclass(frozen=True)
class Suite:
    name: str
    keyring: Path
    sources: tuple[str, ...]


def suite() -> Suite:
    ubuntu = Path(os.environ.get("TRISPARK_UBUNTU_KEYRING", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"))
    if ubuntu.is_file() and os.uname().machine == "x86_64":
        places = ("noble", "noble-updates")
        return Suite(
            "noble",
            ubuntu,
            tuple(f"deb [signed-by={ubuntu}] http://archive.ubuntu.com/ubuntu {each} main universe" for each in places),
        )
    debian = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if debian.is_file():
        return Suite("bookworm", debian, ())
    raise Unable("no keys of a distribution's archive on this machine (package debian-archive-keyring)")


def docker(*arguments: str, timeout_s: float = 60, data: bytes | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, check=False, timeout=timeout_s * PATIENCE, input=data
    )
    if done.returncode != 0:
        raise AssertionError(f"docker {' '.join(arguments)[:300]}: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout.decode(errors="replace").strip()


def image() -> str:
    """The image's name; made where it is not there. Raises Unable."""
    try:
        docker("info", timeout_s=30)
    except (AssertionError, OSError) as error:
        raise Unable(f"no Docker Engine: {error}") from error
    chosen = suite()
    key = hashlib.sha256(repr((chosen, PACKAGES, PREPARE)).encode()).hexdigest()[:12]
    name = f"{LABEL}:{chosen.name}-{key}"
    if docker("images", "--quiet", name):
        return name
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise Unable("the image is made by root with mmdebstrap, once")
    with tempfile.TemporaryDirectory(prefix="trispark-test-", dir="/var/tmp") as directory:
        tar = Path(directory) / "root.tar"
        _bootstrap(chosen, tar)
        docker("import", "--change", f"LABEL {LABEL}=1", str(tar), name, timeout_s=300)
    return name


def _bootstrap(chosen: Suite, tar: Path) -> None:
    argv = ["nice", "-n", "19", "mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--format=tar"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale")]
    argv += ["--dpkgopt=force-unsafe-io", '--aptopt=Apt::Install-Recommends "false"']
    argv += [f"--include={','.join(PACKAGES)}"]
    argv += [f"--customize-hook=chroot \"$1\" sh -c '{_in_single_quotes(PREPARE)}'", chosen.name, str(tar)]
    done = subprocess.run([*argv, *chosen.sources], capture_output=True, text=True, check=False, timeout=BOOTSTRAP_S)
    if done.returncode != 0:
        raise Unable(f"{chosen.name} cannot be bootstrapped: {done.stderr[-500:]}")


def _in_single_quotes(text: str) -> str:
    return text.replace("'", "'\\''")


def until(what: str, condition: Callable[[], bool], seconds: float, every_s: float = 0.25) -> None:
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds * PATIENCE:g} s: {what}")
        time.sleep(every_s)


@dataclass(frozen=True)
class SystemdNode:
    """One container, by its id."""

    id: str

    @classmethod
    def begin(cls, name: str) -> SystemdNode:
        """Raises Unable with what systemd said where it does not come up."""
        argv = ["run", "--detach", "--name", name, "--label", f"{LABEL}=1", "--network", "none", "--memory", "2g"]
        argv += [
            "--hostname",
            "spark1",
            "--cgroupns",
            "private",
            "--stop-signal",
            "SIGRTMIN+3",
            "--env",
            "container=docker",
        ]
        argv += [word for each in CAPABILITIES for word in ("--cap-add", each)]
        argv += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
        argv += ["--device-cgroup-rule", "c *:* rmw", "--device-cgroup-rule", "b *:* rmw"]
        argv += ["--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777"]
        argv += [
            "--volume",
            "/var/lib/docker",
            "--volume",
            "/var/lib/containerd",
            "--tty",
            image(),
            "/bin/sh",
            "-c",
            START,
        ]
        node = cls(docker(*argv, timeout_s=120))
        try:
            node.wait_booted()
        except AssertionError as error:
            said = subprocess.run(["docker", "logs", node.id], capture_output=True, check=False, timeout=60)
            node.remove()
            raise Unable(f"systemd does not come up in a container here: {error}; {said.stdout[-1500:]!r}") from error
        return node

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.id, timeout_s=120)

    def run(self, *argv: str, data: bytes | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        interactive = ["--interactive"] if data is not None else []
        done = subprocess.run(
            ["docker", "exec", *interactive, self.id, *argv],
            capture_output=True,
            check=False,
            timeout=timeout_s * PATIENCE,
            input=data,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def sh(self, script: str, timeout_s: float = 60) -> str:
        """Its output. Raises AssertionError where it ends with another status than 0."""
        done = self.run("sh", "-ec", script, timeout_s=timeout_s)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ask(self, verb: str, request: str = "{}") -> subprocess.CompletedProcess[str]:
        return self.run(AGENT, verb, data=request.encode())

    def put(self, path: str, content: bytes) -> None:
        done = self.run("sh", "-ec", 'mkdir -p "$(dirname "$1")"; cat > "$1"', "sh", path, data=content)
        assert done.returncode == 0, done.stderr

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.sh(f"systemctl show --property={name} --value {unit}")

    def shows(self, *names: str) -> tuple[str, ...]:
        return tuple(self.show(name) for name in names)

    def said(self) -> str:
        """What the unit's last run wrote into the node's journal."""
        self.sh("journalctl --sync")
        return self.sh(f"journalctl --quiet --output=cat _SYSTEMD_INVOCATION_ID={self.show('InvocationID')}")

    def run_engine(self, boot: str, epoch: int, program: str, *options: str) -> None:
        """An engine's container with the labels that the agent gives it, of a program of busybox's shell."""
        if not self.sh(f"docker images --quiet {ENGINE_IMAGE}"):
            self.sh(
                "mkdir -p /root/engine/bin && cp /bin/busybox /root/engine/bin/sh && ln -sf sh /root/engine/bin/sleep"
                f" && tar -C /root/engine -c . | docker import - {ENGINE_IMAGE}"
            )
        labels = {
            "trispark": "1", "trispark.role": "engine", "trispark.generation": "g0000000000000000",
            "trispark.boot": boot, "trispark.epoch": str(epoch), "trispark.rank": "1",
        }  # fmt: skip
        words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        argv = ["docker", "run", "--detach", "--name", "trispark-engine", "--network", "host", *words, *options]
        done = self.run(*argv, ENGINE_IMAGE, "sh", "-c", program)
        assert done.returncode == 0, done.stderr

    def engine(self) -> str:
        """Its status in the words of Docker; empty where there is none."""
        done = self.run("docker", "inspect", "--format", "{{.State.Status}}", "trispark-engine")
        return done.stdout.strip() if done.returncode == 0 else ""

    def wait_booted(self) -> None:
        """Until no job of the start is left, whatever failed."""

        def booted() -> bool:
            return self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

        until("systemd has started everything", booted, BOOTED_S, 0.5)

    def lose_power(self) -> None:
        """Every process of it is killed at once, and it starts again."""
        docker("kill", self.id)
        until(
            "the container is gone", lambda: docker("inspect", "--format", "{{.State.Running}}", self.id) == "false", 30
        )
        docker("start", self.id, timeout_s=120)
        self.wait_booted()

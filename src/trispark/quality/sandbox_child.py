"""Runs one piece of a model's code: defines it, then answers calls, one after the other. Judges nothing.

Standard library alone; `sandbox_program` starts this file's text. It never sees what a call should give, and a call
only when the code is there: whatever the code does to this process, a right answer has to be computed.

    python3 -I -S -B -c TEXT RESULT_FD, questions on fd 0
    questions  lines of JSON: {"code"}, then {"token", "call": expression}, to the end of the file
    answers    lines: `filtered`; `received`, before the code runs; `defined`, or `error NAME`; for a call
               `TOKEN value REPR` or `TOKEN error NAME`
"""

import ctypes
import json
import os
import platform
import struct
import sys

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What a process is refused besides; numbers of the kernel's tables."""
REFUSED: dict[str, tuple[int, int | None]] = {
    # Processes and threads, programs, signals to others, other processes' memory and limits.
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "setrlimit": (160, 164), "prlimit64": (302, 261), "unshare": (272, 97),
    "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "setsid": (112, 157), "setpgid": (109, 154),
    # Sockets and other ways to somebody else.
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "connect": (42, 203), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # Files: opening is looked at by itself, below.
    "creat": (85, None), "openat2": (437, 437), "open_by_handle_at": (304, 265), "memfd_create": (319, 279),
    "truncate": (76, 45), "ftruncate": (77, 46), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "link": (86, None), "linkat": (265, 37),
    "unlink": (87, None), "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "mount": (165, 40), "umount2": (166, 39),
}  # fmt: skip
OPEN: dict[str, tuple[int, int | None, int]] = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""... and the place of their flags."""
WRITING = 0o3 | os.O_CREAT | os.O_TRUNC

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
X32 = 0x40000000


def filter_of(machine: str) -> bytes:
    """The classic BPF program that refuses them with EPERM. Raises KeyError for a machine without a table."""
    steps = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL)]
    column = list(AUDIT_ARCH).index(machine)
    steps += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, NOT_PERMITTED)]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOT_PERMITTED)]
    for first, second, place in OPEN.values():
        if (number := (first, second)[column]) is not None:
            steps += [(EQUAL, 0, 4, number), (LOAD, 0, 0, ARGUMENTS + 8 * place)]
            steps += [(ANY_BIT, 0, 1, WRITING), (RETURN, 0, 0, NOT_PERMITTED), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def confine() -> None:
    """For good. Raises OSError or KeyError where the kernel or the machine has no such filter."""
    program = filter_of(platform.machine())
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    for option, *rest in ((38, one, zero), (22, ctypes.c_ulong(2), described)):  # no new privileges, filter
        if libc.prctl(option, *rest, zero, zero):
            raise OSError(ctypes.get_errno(), "prctl")


def _name(error: BaseException, kind: type = type) -> str:
    return str(kind(error).__name__)


def main(target: int) -> int:
    """Bound names alone are used after the code is there: it may have replaced every other."""
    read, write, dumps, loads = os.read, os.write, repr, json.loads
    evaluate, translate, any_error, name_of = eval, compile, BaseException, _name
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.set_inheritable(target, False)
    left = b""

    def line() -> dict[str, str] | None:
        nonlocal left
        while b"\n" not in left:
            more = read(source, 65536)
            if not more:
                return None
            left += more
        first, _, left = left.partition(b"\n")
        found: dict[str, str] = loads(first)
        return found

    def say(text: str) -> None:
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        while data:
            data = data[write(target, data) :]

    confine()
    say("filtered")
    code = (line() or {})["code"]
    space = {"__name__": "answer"}
    say("received")
    try:
        exec(translate(code, "answer", "exec"), space)
    except any_error as error:
        say(f"error {name_of(error)}")
        return 0
    say("defined")
    while (asked := line()) is not None:
        try:
            said = "value " + dumps(evaluate(asked["call"], space))
        except any_error as error:
            said = f"error {name_of(error)}"
        say(f"{asked['token']} {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""Scorers as another library may have them; imported by the workers of the tests' pools."""

import os
import signal
import socket
import subprocess
import sys
import time


def add(left, right):
    return left + right


def endless_power():
    return 9**9**9**9


def raises(message):
    raise KeyError(message)


def raises_what_cannot_be_shown():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    raise Mute


def allocates(megabytes):
    return len([bytes(1 << 20) for _ in range(megabytes)])


def exits():
    sys.exit(0)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in(pid):
    if os.getpid() == pid:
        os.kill(pid, signal.SIGKILL)
    return "alive"


def pids():
    return [os.getpid(), os.getppid()]


def surroundings():
    return {
        "torch": "torch" in sys.modules,
        "variables": sorted(os.environ),
        "open": len(os.listdir("/proc/self/fd")),
    }


def writes(path):
    with open(path, "w") as file:
        file.write("text")


def sleeps(seconds):
    time.sleep(seconds)
    return seconds


def prints_and_adds(left, right):
    print("noise " * 10_000)
    print("noise", file=sys.stderr)
    return left + right


def attacks(victim, port):
    """What a scorer that evaluates an answer as Python may be talked into; the outcome of each attempt."""
    attempts = {
        "program": lambda: subprocess.run(["true"], check=True),
        "fork": os.fork,
        "connection": lambda: socket.create_connection(("127.0.0.1", port), timeout=1),
        "signal": lambda: os.kill(os.getppid(), 0),
        "deletion": lambda: os.unlink(victim),
        "renaming": lambda: os.rename(victim, f"{victim}2"),
        "mode": lambda: os.chmod(victim, 0o777),
        "folder": lambda: os.mkdir(f"{victim}3"),
    }
    outcomes = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            outcomes[name] = "done"
        except OSError as error:
            outcomes[name] = type(error).__name__
    return outcomes


def unserialisable():
    return object()

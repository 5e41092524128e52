"""Scorers as another library may have them; imported by the workers of the tests' pools."""

import os
import signal
import sys
import time
from pathlib import Path


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


def dies_once(marker):
    """Dies in the first of two calls: the marker cannot hold text, since workers may not write files."""
    if Path(marker).exists():
        return "alive"
    Path(marker).touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return None


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


def unserialisable():
    return object()

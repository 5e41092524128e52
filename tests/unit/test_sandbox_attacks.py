"""Attacks that are over at once, behind the default walls; the whole catalogue is a slow test."""

import asyncio
import importlib.util
import sys
from pathlib import Path

from sandbox_box import running_box


def load_catalogue():
    path = Path(__file__).parents[2] / "benchmarks" / "sandbox_attacks.py"
    spec = importlib.util.spec_from_file_location("sandbox_attacks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sandbox_attacks"] = module
    spec.loader.exec_module(module)
    return module


catalogue = load_catalogue()


def test_quick_attacks_are_held():
    quick = [attack for attack in catalogue.attacks_on("namespaces") if not attack.heavy]
    assert len(quick) >= 40

    async def play(box, places):
        return await asyncio.gather(*[box.run(catalogue.filled(attack, places, box), 30) for attack in quick])

    with running_box(catalogue.LIMITS) as box, catalogue.bait() as places:
        results = box.wait(play(box.sandbox, places))
        left = catalogue.left_over(box.sandbox)
    problems = {
        attack.name: catalogue.verdict(attack, result, left)
        for attack, result in zip(quick, results, strict=True)
    }
    assert {name: problem for name, problem in problems.items() if problem} == {}


HARMLESS = (
    "reads a file outside",
    "lists directories outside",
    "reads environments and command lines",
    "sees other processes",
    "connects to the host",
    "connects to an abstract socket",
    "opens sockets of any family",
    "turns a pair into a listener",
    "shares memory with other calls",
)


def test_the_attacks_are_real():
    """Without walls they get what they are after; those that would do harm are left out."""
    bare = [attack for attack in catalogue.ATTACKS if attack.name in HARMLESS]

    async def plain(attack, places):
        code = catalogue.filled_for(attack, places, server_pid=1, unprivileged=False)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        return (await process.communicate())[0].decode()

    async def play(places):
        return [await plain(attack, places) for attack in bare]

    with catalogue.bait() as places:
        said = asyncio.run(play(places))
    assert len(said) == len(HARMLESS)
    assert [attack.name for attack, text in zip(bare, said, strict=True) if "ESCAPED" not in text] == []

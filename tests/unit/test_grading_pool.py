import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grading_scorers as scorers
import pytest

from flashreinforce_molt.graders import GradingError, GradingPool, GradingTimeout
from flashreinforce_molt.sandbox.zygote import landlock, seccomp


def with_pool(test, **options):
    async def run():
        async with GradingPool(**{"timeout": 5.0, **options}) as pool:
            return await test(pool)

    return asyncio.run(run())


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if is_alive(pid)]


def test_a_scorer_runs_in_another_process_and_its_noise_goes_nowhere(capfd):
    async def test(pool):
        assert await pool.call(scorers.prints_and_adds, 1, 2) == 3
        worker, _ = await pool.call(scorers.pids)
        assert worker != os.getpid()

    with_pool(test, workers=1)
    assert capfd.readouterr() == ("", "")


def test_a_call_that_never_ends_is_killed_at_the_limit_and_the_next_one_works():
    async def test(pool):
        await pool.call(scorers.add, 0, 0)
        before = time.monotonic()
        with pytest.raises(GradingTimeout, match=r"no result within 0\.3 s"):
            await pool.call(scorers.endless_power)
        assert time.monotonic() - before < 2
        assert await pool.call(scorers.add, 1, 2) == 3
        assert (pool.timeouts, pool.deaths) == (1, 0)

    with_pool(test, timeout=0.3, workers=1)


def test_failures_of_a_call_are_named_and_harm_no_other_call():
    async def test(pool):
        for function, arguments, message in [
            (scorers.raises, ("the cause",), "KeyError: 'the cause'"),
            (scorers.raises_what_cannot_be_shown, (), "^Mute$"),
            (scorers.exits, (), "SystemExit"),
            (scorers.allocates, (3000,), "more than 200 MB"),
            (scorers.unserialisable, (), "not JSON serializable"),
            (scorers.dies, (), "died twice, the second time with exit code -9"),
            (scorers.writes, ("/dev/shm/flashreinforce_molt_grader",), "Permission denied|File too large"),
        ]:
            with pytest.raises(GradingError, match=message):
                await pool.call(function, *arguments)
            assert await pool.call(scorers.add, 1, 2) == 3
        Path("/dev/shm/flashreinforce_molt_grader").unlink(missing_ok=True)

    with_pool(test, workers=1, memory_mb=200)


def test_a_call_whose_worker_was_killed_is_tried_again():
    async def test(pool):
        first, _ = await pool.call(scorers.pids)
        assert await pool.call(scorers.dies_in, first) == "alive"
        assert pool.deaths == 1
        worker, _ = await pool.call(scorers.pids)
        os.kill(worker, signal.SIGKILL)  # while it waits
        assert await pool.call(scorers.add, 1, 2) == 3

    with_pool(test, workers=1)


def test_killing_the_nursery_costs_nothing_but_time():
    async def test(pool):
        worker, nursery = await pool.call(scorers.pids)
        os.kill(nursery, signal.SIGKILL)
        assert wait_until_dead([worker]) == []
        assert await pool.call(scorers.add, 1, 2) == 3

    with_pool(test, workers=1)


def test_500_easy_calls_beside_endless_ones_all_get_their_result():
    async def test(pool):
        hostile = [asyncio.ensure_future(pool.call(scorers.endless_power)) for _ in range(2)]
        await asyncio.sleep(0)
        easy = await asyncio.gather(*(pool.call(scorers.add, n, 1) for n in range(500)))
        assert easy == [n + 1 for n in range(500)]
        assert [type(result) for result in await asyncio.gather(*hostile, return_exceptions=True)] == 2 * [
            GradingTimeout
        ]

    with_pool(test, timeout=0.5)


def test_workers_inherit_no_torch_no_secrets_and_no_descriptors(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    with open("/dev/null"):
        found = with_pool(lambda pool: pool.call(scorers.surroundings))
    assert not found["torch"]
    assert set(found["variables"]) <= {
        *(
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "TZ",
            "TMPDIR",
            "LD_LIBRARY_PATH",
            "OPENBLAS_CORETYPE",
        ),
        *("PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    }
    assert found["open"] <= 5  # standard streams, its connection, and the listing


@pytest.mark.skipif(
    not (landlock.version() and seccomp.supported()),
    reason="this kernel has no Landlock, or another architecture",
)
def test_a_scorer_that_runs_an_answer_as_python_reaches_nothing(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = with_pool(lambda pool: pool.call(scorers.attacks, str(victim), server.getsockname()[1]))
    assert found == dict.fromkeys(found, "PermissionError")
    assert victim.read_text() == "kept"


def test_one_pool_serves_several_event_loops_and_plain_threads():
    pool = GradingPool(workers=1, timeout=5.0)
    try:
        assert asyncio.run(pool.call(scorers.add, 1, 2)) == 3
        assert asyncio.run(pool.call(scorers.add, 1, 3)) == 4
        assert pool.submit(scorers.add, 1, 4).result() == 5
    finally:
        pool.close()


def test_closing_fails_what_waits_leaves_no_process_and_refuses_more():
    async def run():
        pool = GradingPool(workers=1, timeout=20.0)
        pids = await pool.call(scorers.pids)
        calls = [asyncio.ensure_future(pool.call(scorers.sleeps, 30)) for _ in range(3)]
        await asyncio.sleep(0.1)
        before = time.monotonic()
        pool.close()
        pool.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - before < 2
        assert [str(result) for result in results] == 3 * ["the grading pool was closed"]
        assert wait_until_dead(pids) == []
        with pytest.raises(GradingError, match="closed"):
            await pool.call(scorers.add, 1, 2)

    asyncio.run(run())


def test_a_cancelled_call_leaves_the_pool_usable():
    async def test(pool):
        await pool.call(scorers.add, 0, 0)
        running = asyncio.ensure_future(pool.call(scorers.sleeps, 0.3))
        waiting = asyncio.ensure_future(pool.call(scorers.sleeps, 30))
        await asyncio.sleep(0.05)
        running.cancel()
        waiting.cancel()
        assert await pool.call(scorers.add, 1, 2) == 3

    with_pool(test, workers=1)


def test_a_function_of_the_main_script_and_a_broken_preload_are_refused_by_name(monkeypatch):
    def local():
        pass

    local.__module__ = "__main__"
    with contextlib.closing(GradingPool()) as pool, pytest.raises(ValueError, match="lives in __main__"):
        pool.submit(local)
    with contextlib.closing(GradingPool(preload=["no_such_module"])) as pool:
        for _ in range(2):
            with pytest.raises(GradingError, match=r"cannot start:(.|\n)*No module named 'no_such_module'"):
                pool.submit(scorers.add, 1, 2).result()


def test_workers_die_with_their_owner_even_when_it_is_killed():
    script = (
        "import grading_scorers as scorers; from flashreinforce_molt.graders import GradingPool; import time\n"
        "pool = GradingPool(workers=1, timeout=60)\n"
        "print(*pool.submit(scorers.pids).result(), flush=True)\n"
        "pool.submit(scorers.endless_power); time.sleep(60)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert all(is_alive(pid) for pid in pids)
        owner.kill()
    assert wait_until_dead(pids) == []


def test_importing_the_graders_imports_no_library_of_theirs():
    script = "import sys, flashreinforce_molt.graders; print([n for n in ('sympy', 'math_verify', 'numpy', 'torch') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

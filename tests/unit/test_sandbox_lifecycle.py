import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sandbox_box import SMALL, alive_with, command_line, forks_of, running_box

from flashreinforce_molt.sandbox import Isolation, PythonSandbox, SandboxUnavailable
from flashreinforce_molt.sandbox.config import BACKENDS
from flashreinforce_molt.sandbox.selfcheck import CHECK, verify
from flashreinforce_molt.sandbox.server import Hello, Server


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def processes(box, count):
    """Wait until this many processes of calls live."""
    deadline = time.monotonic() + 20
    while len(forks_of(box.sandbox.server_pid)) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def waits_behind_its_filter(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return "Seccomp:\t2" in status and "State:\tS" in status


def test_cancelling_ends_every_process_of_the_call_before_it_returns():
    with running_box() as box:

        async def play():
            code = "import os\nif os.fork() == 0: os.setsid()\nos.fork()\nwhile True: pass"
            call = asyncio.create_task(box.sandbox.run(code))
            await processes(box, 6)
            during = len(forks_of(box.sandbox.server_pid))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return during, forks_of(box.sandbox.server_pid), await box.sandbox.run("1")

        during, after, next_result = box.wait(play())
    assert during >= 6
    assert after == []
    assert next_result.ok


def test_cancelling_while_waiting_for_a_slot_starts_nothing():
    with running_box(concurrency=1) as box:

        async def play():
            first = asyncio.create_task(box.sandbox.run("import time; time.sleep(0.5)"))
            second = asyncio.create_task(box.sandbox.run("1"))
            await asyncio.sleep(0.1)
            second.cancel()
            return (await first).status, (await box.sandbox.run("2")).value

        assert box.wait(play()) == ("ok", "2")


def test_closing_ends_running_and_waiting_calls_as_cancelled():
    with running_box(concurrency=1) as box:

        async def play():
            line = command_line(box.sandbox.server_pid)
            calls = [asyncio.create_task(box.sandbox.run("while True: pass")) for _ in range(3)]
            await processes(box, 3)
            await box.sandbox.close()
            return line, await asyncio.gather(*calls)

        line, results = box.wait(play())
    assert [result.status for result in results] == ["cancelled"] * 3
    until(lambda: alive_with(line) == [])


def test_closing_while_the_server_starts_again_leaves_nothing():
    with running_box(preload=("decimal", "xml.dom.minidom")) as box:
        line = command_line(box.sandbox.server_pid)

        async def play():
            os.kill(box.sandbox.server_pid, signal.SIGKILL)
            while box.sandbox._server.alive:
                await asyncio.sleep(0.01)
            call = asyncio.create_task(box.sandbox.run("1"))
            await asyncio.sleep(0.02)
            await box.sandbox.close()
            return await asyncio.wait_for(call, 20)

        assert box.wait(play()).status == "cancelled"
    until(lambda: alive_with(line) == [])


def test_a_closed_sandbox_answers_cancelled_and_one_never_started_says_so():
    with running_box() as box:
        box.wait(box.sandbox.close())
        assert box.run("1").status == "cancelled"
        box.wait(box.sandbox.start())
        assert box.run("1").ok


def test_a_killed_server_comes_back_and_calls_in_flight_fail_by_name():
    with running_box(concurrency=4) as box:
        server = box.sandbox.server_pid

        async def play():
            calls = [asyncio.create_task(box.sandbox.run("import time; time.sleep(20)")) for _ in range(3)]
            async with box.sandbox.session() as session:
                await session.run("x = 1")
                await processes(box, 12)
                os.kill(server, signal.SIGKILL)
                failed = await asyncio.gather(*calls)
                lost = await session.run("x")
                return failed, lost, await session.run("'x' in globals()"), await box.sandbox.run("2")

        failed, lost, fresh, after = box.wait(play())
        assert [result.status for result in failed] == ["sandbox_error"] * 3
        assert "died during the call" in failed[0].detail
        assert (lost.status, lost.state_lost) == ("sandbox_error", True)
        assert fresh.value == "False"
        assert after.value == "2"
        assert box.sandbox.restarts == 1
        until(lambda: forks_of(box.sandbox.server_pid) == [])


def test_a_killed_supervisor_takes_its_snippet_along():
    with running_box() as box:

        async def play():
            call = asyncio.create_task(box.sandbox.run("import time; time.sleep(20)"))
            await processes(box, 3)
            supervisor = min(forks_of(box.sandbox.server_pid))
            os.kill(supervisor, signal.SIGKILL)
            return await call

        assert box.wait(play()).status == "sandbox_error"
        until(lambda: forks_of(box.sandbox.server_pid) == [])


def test_a_snippet_behind_landlock_cannot_arrange_to_outlive_its_supervisor():
    isolation = Isolation("landlock", required=("landlock", "seccomp", "limits"))
    try:
        with running_box(isolation=isolation) as box:

            async def play():
                code = "import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nwhile True: pass"
                call = asyncio.create_task(box.sandbox.run(code))
                await processes(box, 2)
                os.kill(min(forks_of(box.sandbox.server_pid)), signal.SIGKILL)
                return await call

            assert box.wait(play()).status == "sandbox_error"
            until(lambda: forks_of(box.sandbox.server_pid) == [])
    except SandboxUnavailable as missing:
        pytest.skip(str(missing))


def test_nothing_outlives_a_program_that_was_killed():
    program = (
        "import asyncio, sys\nfrom flashreinforce_molt.sandbox import PythonSandbox\n"
        "async def main():\n    async with PythonSandbox(preload=(), spares=0) as box:\n"
        "        print(box.server_pid, flush=True)\n        await box.run('while True: pass', 60)\nasyncio.run(main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        line = command_line(int(parent.stdout.readline()))
        until(lambda: len(alive_with(line)) == 4)
        parent.kill()
    until(lambda: alive_with(line) == [])


def test_calls_leak_no_file_descriptors_here_or_in_the_server():
    with running_box() as box:

        def opened(pid):
            return len(os.listdir(f"/proc/{pid}/fd"))

        box.run("1")
        before = opened("self"), opened(box.sandbox.server_pid)
        for code in ("1", "1 / 0", "import os; os._exit(1)", "import os; os.close(3); os.close(1)"):
            box.run(code)
        assert (opened("self"), opened(box.sandbox.server_pid)) == before


def test_a_snippet_inherits_nothing_of_this_process(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "secret-1234")
    descriptor = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        with running_box() as box:
            server = Path(f"/proc/{box.sandbox.server_pid}")
            assert b"secret-1234" not in (server / "environ").read_bytes()
            assert __file__ not in [os.readlink(entry) for entry in (server / "fd").iterdir()]
            result = box.run(
                "import os, sys\nsorted(os.environ), sys.argv, 'flashreinforce_molt' in sys.modules"
            )
    finally:
        os.close(descriptor)
    names, arguments, visible = eval(result.value)
    assert set(names) <= {"HOME", "LANG", "PATH", "TMPDIR", "PYTHONDONTWRITEBYTECODE"} | {
        name for name in names if name.endswith("_NUM_THREADS")
    }
    assert (arguments, visible) == (["<snippet>"], False)


@pytest.fixture
def public_directory():
    """Where any user may read; pytest's own temporary directories are private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def test_neither_this_checkout_nor_the_home_is_readable(public_directory):
    secret = public_directory / "answers.json"
    secret.write_text("42")
    places = [
        str(Path(__file__)),
        str(Path(__file__).parents[2]),
        os.path.expanduser("~/.bashrc"),
        str(secret),
    ]
    with running_box() as box:
        assert box.run(f"import os\n[os.path.exists(p) for p in {places!r}]").value == str([False] * 4)
    with running_box(isolation=Isolation(readable=(str(public_directory),))) as box:
        assert box.run(f"open({str(secret)!r}).read()").value == "'42'"
        assert box.run(f"open({str(secret)!r}, 'w')").status == "error"


def test_modules_are_preloaded_when_installed_and_a_broken_one_stops_the_start():
    with running_box(preload=("colorsys", "surely_not_installed")) as box:
        assert box.sandbox.preloaded == ("colorsys",)
        assert box.run("import sys\n'colorsys' in sys.modules").value == "True"
    with (
        pytest.raises(RuntimeError, match="did not start"),
        running_box(preload=("asyncio.windows_events",)),
    ):
        pass


@pytest.mark.parametrize("layer", ["namespaces", "seccomp", "limits", "uid"])
def test_a_layer_that_the_host_lacks_stops_the_start_by_name(monkeypatch, layer):
    async def without(self):
        raise SandboxUnavailable(layer, "unshare: Operation not permitted")

    monkeypatch.setattr(Server, "start", without)
    with pytest.raises(
        SandboxUnavailable, match=f"sandbox layer '{layer}' is missing on this host: unshare"
    ) as refusal:
        asyncio.run(PythonSandbox().start())
    assert refusal.value.layer == layer


def test_a_host_without_namespaces_is_refused_really():
    """In a namespace of its own whose limit on further namespaces is zero."""
    program = (
        "import asyncio\nfor kind in ('mnt', 'net', 'pid', 'ipc', 'uts', 'user'):\n"
        "    open(f'/proc/sys/user/max_{kind}_namespaces', 'w').write('0')\n"
        "from flashreinforce_molt.sandbox import PythonSandbox, SandboxUnavailable\n"
        "try: asyncio.run(PythonSandbox(preload=()).start())\nexcept SandboxUnavailable as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if "unshare failed" in done.stderr:
        pytest.skip(f"user namespaces are off here: {done.stderr.strip()}")
    assert (
        "sandbox layer 'uid' is missing" in done.stdout
        or "sandbox layer 'namespaces' is missing" in done.stdout
    ), done
    assert "Fix: " in done.stdout


@pytest.fixture(scope="module")
def honest():
    """What the check sees behind walls that stand."""
    with running_box() as box:
        return box.run(CHECK.decode())


@pytest.mark.parametrize(
    ("layer", "lie"),
    [
        ("seccomp", {"filter": 0}),
        ("seccomp", {"socket": 0}),
        ("uid", {"uid": 0}),
        ("limits", {"capabilities": True}),
        ("limits", {"no_new_privileges": 0}),
        ("namespaces", {"pid": 4711}),
        ("namespaces", {"processes_seen": True}),
        ("namespaces", {"write": 0}),
        ("landlock", {"root": 0}),
    ],
)
def test_a_layer_that_claims_to_hold_but_does_not_is_found_out(honest, layer, lie):
    verify(honest, BACKENDS["namespaces"])
    seen = {**eval(honest.value), **lie}
    forged = type(honest)("ok", value=repr(seen))
    with pytest.raises(SandboxUnavailable, match="it was set up but does not hold") as refusal:
        verify(forged, BACKENDS["landlock" if layer == "landlock" else "namespaces"])
    assert refusal.value.layer == layer


def test_walls_are_built_ahead_used_once_and_built_again():
    with running_box(spares=2) as box:
        until(lambda: len(forks_of(box.sandbox.server_pid)) == 6)
        first = set(forks_of(box.sandbox.server_pid))
        uids = {box.run("import os; open('f', 'x').close(); os.getuid()").value for _ in range(6)}
        assert len(uids) == 6 or os.getuid() != 0
        until(lambda: len(forks_of(box.sandbox.server_pid)) == 6)
        assert not first & set(forks_of(box.sandbox.server_pid))
        line = command_line(box.sandbox.server_pid)
    until(lambda: alive_with(line) == [])


def test_a_spare_that_died_is_passed_over_and_one_whose_snippet_process_died_says_so():
    with running_box(spares=1) as box:
        until(lambda: len(forks_of(box.sandbox.server_pid)) == 3)
        os.kill(min(forks_of(box.sandbox.server_pid)), signal.SIGKILL)
        until(lambda: forks_of(box.sandbox.server_pid) == [])
        assert box.run("1").value == "1"
        until(lambda: len(forks_of(box.sandbox.server_pid)) == 3)
        snippet = max(forks_of(box.sandbox.server_pid))
        until(lambda: waits_behind_its_filter(snippet))
        os.kill(snippet, signal.SIGKILL)
        until(lambda: len(forks_of(box.sandbox.server_pid)) == 1)
        failed = box.run("1")
        assert failed.status == "sandbox_error"
        assert "ended while it waited" in failed.detail
        assert box.run("2").value == "2"


def test_a_stopped_server_is_replaced(monkeypatch):
    monkeypatch.setattr("flashreinforce_molt.sandbox.connection._GRACE_SECONDS", 0.5)
    with running_box() as box:
        os.kill(box.sandbox.server_pid, signal.SIGSTOP)
        failed = box.run("1", timeout=0.2)
        assert (failed.status, "no answer" in failed.detail) == ("sandbox_error", True)
        until(lambda: not box.sandbox._server.alive)
        assert box.run("2").value == "2"


def test_what_the_server_said_at_its_start_is_kept():
    assert Hello(("a",), ()).layers == ("a",)
    with running_box(SMALL) as box:
        assert set(box.sandbox.layers) == {"namespaces", "uid", "seccomp", "limits"}

import asyncio
import dataclasses

import pytest
from sandbox_box import SMALL, running_box

from flashreinforce_molt.sandbox import STATUSES, Limits


@pytest.fixture(scope="module")
def box():
    with running_box() as box:
        yield box


def test_statuses_are_the_documented_ones():
    assert " ".join(STATUSES) == "ok error timeout memory output file cpu crashed cancelled sandbox_error"


def test_output_and_the_value_of_the_last_expression_come_back(box):
    result = box.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n[1, 'two']")
    assert (result.status, result.stdout, result.stderr, result.value) == (
        "ok",
        "out\n",
        "err\n",
        "[1, 'two']",
    )
    assert result.ok
    assert 0 < result.seconds < 20
    assert result.detail == ""
    assert not result.state_lost


@pytest.mark.parametrize("code", ["x = 1", "None", "print(1)", "", "# nothing", "def f(): return 1"])
def test_there_is_no_value_without_a_last_expression(box, code):
    result = box.run(code)
    assert result.ok
    assert result.value is None


def test_an_empty_string_is_a_value(box):
    assert box.run("''").value == "''"


def test_an_error_brings_the_traceback_of_the_snippet_alone_with_its_source(box):
    result = box.run("def f(x):\n    return 1 / x\nf(0)")
    assert result.status == "error"
    assert "return 1 / x" in result.stderr
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert result.stderr.count('File "<snippet>"') == 2
    assert "runner.py" not in result.stderr


def test_a_syntax_error_is_an_error(box):
    result = box.run("def (:")
    assert result.status == "error"
    assert "SyntaxError" in result.stderr


@pytest.mark.parametrize(
    ("code", "status"), [("exit()", "ok"), ("exit(0)", "ok"), ("exit(3)", "error"), ("exit('no')", "error")]
)
def test_leaving_by_exit_counts_by_its_code(box, code, status):
    assert box.run(f"import sys\nsys.{code}").status == status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("b'x' * (1 << 30)", "memory"),
        ("import ctypes; ctypes.string_at(0)", "crashed"),
        ("import os; os._exit(0)", "crashed"),
        ("open('f', 'w').write('x' * (8 << 20))", "file"),
        ("for i in range(9): open(str(i), 'w').write('x' * (1 << 20))", "file"),
        ("while True: print('x' * 9999)", "output"),
    ],
)
def test_each_limit_and_each_death_has_its_status(box, code, status):
    result = box.run(code)
    assert result.status == status
    assert result.detail or result.stderr


def test_a_timeout_ends_the_snippet_and_keeps_what_it_said(box):
    result = box.run("print('before')\nwhile True: pass", timeout=0.3)
    assert (result.status, result.stdout, result.detail) == ("timeout", "before\n", "ended after 0.3 s")
    assert 0.3 <= result.seconds < 5


def test_processor_time_is_counted_over_all_processes():
    limits = dataclasses.replace(SMALL, cpu_seconds=0.3)
    with running_box(limits) as box:
        assert box.run("while True: pass").status == "cpu"
        assert box.run("import os\nos.fork()\nos.fork()\nwhile True: pass").status == "cpu"
        assert box.run("import time; time.sleep(0.6)").status == "ok"


def test_memory_is_counted_over_all_processes():
    with running_box(dataclasses.replace(SMALL, memory_bytes=128 << 20)) as box:
        each = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        b = b'x' * ({0} << 20); time.sleep(30)\n"
        assert box.run(each.format(60) + "time.sleep(30)").status == "memory"
        assert box.run(each.format(4) + "time.sleep(0.3)").status == "ok"


def test_long_output_keeps_its_beginning_and_its_end_and_says_what_it_dropped(box):
    result = box.run("print('begin'); print('x' * 100_000); print('the end')")
    assert result.ok
    assert result.stdout.startswith("begin\n")
    assert result.stdout.endswith("the end\n")
    assert "bytes dropped] ..." in result.stdout
    assert len(result.stdout) < SMALL.output_bytes + 100
    assert "... [the rest dropped]" in box.run("'y' * 100_000").value


def test_a_traceback_after_much_noise_is_still_there(box):
    result = box.run("import sys\nsys.stderr.write('x' * 100_000)\nraise KeyError('lost')")
    assert "KeyError: 'lost'" in result.stderr


def test_the_time_in_the_queue_does_not_count():
    with running_box(concurrency=1) as box:

        async def many():
            return await asyncio.gather(
                *[box.sandbox.run(f"import time; time.sleep(0.2)\n{i}", 1.0) for i in range(6)]
            )

        results = box.wait(many())
    assert [result.value for result in results] == [str(i) for i in range(6)]


def test_threads_are_joined_and_forked_children_do_not_run_on(box):
    assert (
        box.run("import threading\nthreading.Thread(target=lambda: print('joined')).start()").stdout
        == "joined\n"
    )
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')"
    assert box.run(code).stdout == "child\nparent\n"


def test_common_libraries_work_inside(box):
    code = """
import asyncio, dataclasses, multiprocessing, pickle, sqlite3, subprocess, sys, tempfile

@dataclasses.dataclass
class Point:
    x: "int"

async def one():
    return 1

with tempfile.TemporaryFile() as file, sqlite3.connect("d.db") as base, multiprocessing.Pool(2) as pool:
    base.execute("create table t (x)")
    (
        pickle.loads(pickle.dumps(Point(3))).x,
        asyncio.run(one()),
        pool.map(abs, [-2]),
        subprocess.run([sys.executable, "-c", "print(4)"], capture_output=True, text=True).stdout,
    )
"""
    code = code.replace("    (\n", "    seen = (\n") + "\nseen"
    result = box.run(code)
    assert (result.status, result.value) == ("ok", "(3, 1, [2], '4\\n')"), result.stderr


def test_calls_share_nothing(box):
    box.run("import math; math.pi = 3; open('left', 'w').write('x')")
    assert box.run("import math, os\nmath.pi, os.path.exists('left')").value == "(3.141592653589793, False)"


def test_sets_print_in_the_same_order_and_random_numbers_differ(box):
    assert box.run("set('abcdefgh')").value == box.run("set('abcdefgh')").value
    assert box.run("import random; random.random()").value != box.run("import random; random.random()").value


def test_long_code_is_refused_before_it_is_sent(box):
    result = box.run("#" + "x" * SMALL.code_bytes)
    assert result.status == "error"
    assert f"Limits.code_bytes={Limits().code_bytes}" in result.stderr


def test_a_hundred_megabytes_of_code_cost_no_time(box):
    code = "x" * 100_000_000
    assert box.run(code).status == "error"


def test_a_timeout_that_makes_no_sense_is_refused(box):
    for timeout in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout="):
            box.run("1", timeout)

"""The fuzz script works, and a failing case is named so that it can be repeated. The long run is by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz.py"
sys.path.insert(0, str(SCRIPT.parent))

from fuzzing.case import ANSWER, REFUSED, Wrong, attempt  # noqa: E402


def test_a_hundred_cases_of_files_are_answered_or_refused():
    words = [sys.executable, str(SCRIPT), "--only", "data", "--cases", "100"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("data")]
    answered, refused = map(int, line.split()[1:])
    assert answered + refused == 100
    assert min(answered, refused) > 10


def test_an_outcome_is_an_answer_or_a_refusal_of_the_promised_kind():
    assert attempt(lambda: 7, (ValueError,)) == (ANSWER, 7)
    assert attempt(lambda: int("x"), (ValueError,), must=REFUSED, names="'x'") == (REFUSED, None)


@pytest.mark.parametrize(
    ("action", "options", "words"),
    [
        (lambda: {}["a"], {}, "KeyError came from the depths: 'a'"),
        # a ValueError too, but a leaked one
        (lambda: b"\xff".decode(), {}, "UnicodeDecodeError came from the depths"),
        (lambda: int("x"), {"must": ANSWER}, "sound input was refused"),
        (lambda: int("x"), {"names": "line 3"}, "an unclear refusal"),
        (lambda: exec("raise ValueError('x' * 9999)"), {}, "an unclear refusal"),
        (lambda: 7, {"must": REFUSED}, "wrong input was accepted: 7"),
    ],
)
def test_anything_else_is_wrong(action, options, words):
    with pytest.raises(Wrong, match=words):
        attempt(action, (ValueError,), **options)

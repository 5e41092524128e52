import argparse
import subprocess
import sys

import pytest
from data_files import dapo_row, questions, write_benchmarks, write_parquet

from flashreinforce_molt.data import DataError, PreparedRows, command
from flashreinforce_molt.data.prepare import PREPARATIONS


def test_the_command_prepares_and_prints_every_count(tmp_path, capsys):
    source = write_parquet(tmp_path / "dapo.parquet", [dapo_row(*pair) for pair in questions(9)] * 2)
    arguments = ["dapo", "--source", f"dapo={source}", "--output", str(tmp_path / "data"), "--rows", "5"]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "18 rows - 0 unusable - 9 repeated - 0 with conflicting answers = 9 questions, 5 taken" in printed
    assert f"wrote {tmp_path}/data/dapo/report.json" in printed
    assert len(PreparedRows(tmp_path / "data" / "dapo" / "train.parquet")) == 5


def test_a_mistake_is_a_message_and_code_2(tmp_path, capsys):
    folder = write_benchmarks(tmp_path / "sources", aime24=31)
    for arguments, message in (
        (["math_eval", "--source", str(folder)], "aime24 has 31 questions instead of 30"),
        (["dapo", "--source", str(tmp_path / "absent")], "absent does not exist"),
        (["dapo", "--source", "a", "--source", "b"], "--source is given twice for all data sets: a and b"),
        (["dapo", "--rows", "0"], "--rows 0 must be at least 1"),
    ):
        assert command.main([*arguments, "--output", str(tmp_path / "data")]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        command.main(["gsm8k"])
    assert stopped.value.code == 2


def test_without_pyarrow_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install -e '.\[tools\]'"):
        command.run(argparse.Namespace(name="dapo", rows=None))


def test_every_preparation_is_described():
    assert set(command.SUMMARIES) >= set(PREPARATIONS)


def test_declaring_the_command_imports_no_library():
    script = (
        "import sys, flashreinforce_molt.data.command; "
        "print([n for n in ('pyarrow', 'numpy', 'sympy', 'huggingface_hub', 'torch', 'omegaconf') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

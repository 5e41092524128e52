"""Damaged and foreign files: what comes of them is what was written, or an error that names file, place and fault."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import told
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_checkpoint import saved
from test_data_rows import row
from test_torch_learner import config_of
from trajectory_examples import example

from flashreinforce_molt.checkpoint import CheckpointError, newest_checkpoint
from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.prepared import write_table
from flashreinforce_molt.data.records import read_problems
from flashreinforce_molt.data.rows import PreparedRows
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.resuming import recorded_request
from flashreinforce_molt.telemetry import read_metrics, record_resume
from flashreinforce_molt.telemetry.run_directory import RunDirectoryError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
ONE_FOLDER = [HealthCheck.function_scoped_fixture]  # every example writes the same file anew


# -- data ------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, suppress_health_check=ONE_FOLDER)
@given(st.sampled_from([*row(0)]), JSON)
def test_any_value_in_a_row_is_taken_or_the_row_is_named(tmp_path: Path, column: str, value: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (row(0), {**row(1), column: value})))
    tasks, refusal = told(lambda: list(PreparedRows(path)), DataError)
    if refusal:
        assert refusal.startswith(f"{path} row 1")
        assert len(refusal) < 400
    else:
        assert all(isinstance(task.data["gold"], str) and task.data["gold"].strip() for task in tasks)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\xff\xfe{}", "row 1 is no UTF-8 text: invalid start byte at byte 0"),
        (b"[" * 100_000, "row 1 is no JSON that we read: nested too deeply"),
        (b'{"prompt": NaN}', "row 1 is no JSON: NaN is no number of JSON"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "row 1 is no JSON: Exceeds the limit"),
    ],
    ids=["bytes", "depth", "nan", "digits"],
)
@pytest.mark.parametrize("read", [PreparedRows, lambda path: list(read_problems([path]))])
def test_a_line_that_is_no_json_is_named_with_its_row(
    tmp_path: Path, line: bytes, words: str, read: Any
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(row(0)).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(DataError, match=f"^{path} {words}"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": [{"role": "user", "content": "half a pair \ud800"}]}, "prompt holds"),
        ({"reward_model": {"ground_truth": "\ud800"}}, "reward_model.ground_truth="),
        ({"question": 7}, "question=7 is no text"),
        ({"datasource": ["a"]}, r"datasource=\['a'\] is no text"),
        ({"prompt_id": {"a": 1}}, "prompt_id={'a': 1} is neither text nor a whole number"),
        ({"tools": "python"}, "tools='python' is no list of tool schemas"),
        ({"prompt": "x" * 100_000}, r"prompt='x{50,60}\.\.\. is no list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_column_of_another_kind_is_named_in_short(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**row(0), **changes}) + "\n")
    with pytest.raises(DataError, match=f"row 0: {words}"):
        PreparedRows(path)


@pytest.mark.parametrize("answer", ["NaN", "1e999", "[null]", "[true]", "[{}]", "{}", '"\\ud800"', '" "'])
def test_what_is_no_answer_is_named_and_never_becomes_one(tmp_path: Path, answer: str) -> None:
    """JSON's own NaN is refused with its row; the others are rows without an answer."""
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "What?", "answer": ' + answer + "}\n")
    batches, refusal = told(lambda: list(read_problems([path])), DataError)
    if refusal:
        assert "row 0" in refusal
    else:
        assert [(batch.problems, batch.unusable) for batch in batches] == [
            ([], ["questions.jsonl row 0: no answer"])
        ]


def test_what_an_assistant_says_is_no_question(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = [{"prompt": [{"role": "assistant", "content": "Hello"}], "reward_model": {"ground_truth": "1"}}]
    write_table(tmp_path / "rows.parquet", pa.Table.from_pylist(rows))
    (batch,) = read_problems([tmp_path / "rows.parquet"])
    assert batch.unusable == ["rows.parquet row 0: no question"]


def test_a_flipped_byte_in_a_prepared_file_is_no_other_question(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    write_table(path, pa.Table.from_pylist([row(number) for number in range(3)]))
    whole = path.read_bytes()
    sound = [task.data["gold"] for task in PreparedRows(path)]
    for place in range(4, len(whole), 37):
        path.unlink()  # a mapped file must not change under its reader
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        tasks, refusal = told(lambda: list(PreparedRows(path)), DataError)
        assert str(path) in refusal or [task.data["gold"] for task in tasks] == sound


# -- metrics and provenance ------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, suppress_health_check=ONE_FOLDER)
@given(st.sampled_from(["update", "reward_mean", "lr", "mine"]), JSON)
def test_any_value_of_a_metric_is_read_or_its_line_is_named(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"update": n, **({name: value} if n == 2 else {})}) + "\n" for n in (1, 2, 3))
    )
    record, refusal = told(lambda: read_metrics(path), ValueError)
    assert refusal.startswith((f"{path}, line 2", f"{path}, line 3")) or len(record.lines) == 3


def test_a_pipe_is_no_metrics_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="is not a file"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "cannot be read"),
        ('{"settings": {}}', "does not say which recipe and variants"),
        ('{"settings": {}, "recipe": 3, "variants": []}', "does not say which recipe and variants"),
        ('{"settings": {}, "recipe": "r1", "variants": [1]}', "does not say which recipe and variants"),
    ],
    ids=["depth", "no recipe", "recipe", "variants"],
)
def test_a_provenance_that_tells_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(SettingError, match=words):
        recorded_request(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"resumes": "none"}', '{"resumes": {}}'])
def test_a_resume_is_not_added_to_a_damaged_provenance(tmp_path: Path, text: str) -> None:
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="is damaged"):
        record_resume(tmp_path, 3)


# -- trajectories and checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), 10**400])
def test_a_fact_that_no_mean_can_hold_is_refused_where_it_arises(fact: Any) -> None:
    with pytest.raises(ValueError, match=r"trajectory 7: info \['seconds'\] = .* is not a finite number"):
        example(info={"seconds": fact})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only checkpoint of its directory; a test leaves it as it was."""
    return saved(tmp_path_factory.mktemp("checkpoints"), 1)[2]


def complaint(checkpoint: Path) -> str:
    said: list[str] = []
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        newest_checkpoint(checkpoint.parent, said.append)
    return said[0]


def test_no_bit_of_a_state_can_change_unnoticed(checkpoint: Path) -> None:
    file = checkpoint / "state.json"
    whole = file.read_bytes()
    for place in range(0, len(whole) - 1, 11):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        assert str(checkpoint) in complaint(checkpoint)
    file.write_bytes(whole)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "RecursionError"),
        ("[]", "TypeError"),
        ('{"format": 1}', "format 1, this version reads 2"),
    ],
    ids=["depth", "list", "old"],
)
def test_a_state_of_another_kind_is_named(checkpoint: Path, text: str, words: str) -> None:
    file = checkpoint / "state.json"
    whole = file.read_text()
    file.write_text(text)
    assert words in complaint(checkpoint)
    file.write_text(whole)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling_evil.py", "added_tokens.json"])
def test_a_file_that_was_not_written_with_a_checkpoint_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).write_bytes(b"{}")
    assert f"holds '{name}', which was not written with it; remove that file" in complaint(checkpoint)
    (checkpoint / name).unlink()


def test_a_renamed_checkpoint_is_not_taken_for_a_newer_one(checkpoint: Path) -> None:
    other = checkpoint.rename(checkpoint.with_name("update_000009"))
    assert "holds update 1; it was renamed" in complaint(other)
    other.rename(checkpoint)


def test_a_checkpoint_of_another_learner_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    found = newest_checkpoint(checkpoint.parent, print)
    file = checkpoint / "learner.safetensors"
    whole = file.read_bytes()
    save_file({"exp_avg.0": torch.zeros(1)}, file)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"learner\.safetensors does not fit this model and learner"):
        found.restore(TorchLearner(model, config_of()))  # type: ignore[arg-type]
    file.write_bytes(whole)

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import dapo_row, write_jsonl, write_parquet

from flashreinforce_molt.data import DataError
from flashreinforce_molt.data.records import read_problems

PAIRS = [("one?", "1"), ("two?", "2")]


def pairs_of(*paths):
    problems = [problem for batch in read_problems(paths) for problem in batch.problems]
    return [(problem.question, problem.answer) for problem in problems]


SCHEMAS = {
    "problem and answer": [{"problem": q, "answer": a} for q, a in PAIRS],
    "question and answer": [{"question": q, "answer": a} for q, a in PAIRS],
    "question and final_answer list": [{"question": q, "final_answer": [a]} for q, a in PAIRS],
    "final_answer before answer": [{"question": q, "answer": "no", "final_answer": a} for q, a in PAIRS],
    "whole numbers": [{"problem": q, "answer": int(a)} for q, a in PAIRS],
    "floats that are whole": [{"problem": q, "answer": float(a)} for q, a in PAIRS],
    "chat": [
        {"prompt": [{"role": "user", "content": q}], "reward_model": {"ground_truth": a}} for q, a in PAIRS
    ],
    "chat with system message": [
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q}],
            "reward_model": {"ground_truth": a},
        }
        for q, a in PAIRS
    ],
    "plain prompt": [{"prompt": q, "reward_model": {"ground_truth": a}} for q, a in PAIRS],
    "numeric truth": [{"prompt": q, "reward_model": {"ground_truth": int(a)}} for q, a in PAIRS],
}


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_every_schema_is_read_from_every_format(tmp_path, schema, suffix):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        write_parquet(path, SCHEMAS[schema])
    elif suffix == ".jsonl":
        write_jsonl(path, SCHEMAS[schema])
    else:
        path.write_text(json.dumps(SCHEMAS[schema]))
    assert pairs_of(path) == PAIRS


def test_json_may_wrap_its_rows_or_hold_one_a_line(tmp_path):
    rows = SCHEMAS["problem and answer"]
    wrapped, lines = tmp_path / "wrapped.json", tmp_path / "lines.json"
    wrapped.write_text(json.dumps({"version": 1, "data": rows}))
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert pairs_of(wrapped) == pairs_of(lines) == PAIRS


def test_large_strings_and_many_row_groups_are_read(tmp_path):
    table = pa.table(
        {
            "problem": pa.array([f"{n}?" for n in range(1000)], pa.large_string()),
            "answer": pa.array(range(1000), pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    assert pairs_of(tmp_path / "rows.parquet") == [(f"{n}?", str(n)) for n in range(1000)]


def test_rows_without_question_or_answer_are_named_and_left_out(tmp_path):
    rows = [
        {"problem": "one?", "answer": "1"},
        {"problem": "two?", "answer": None},
        {"problem": " ", "answer": "3"},
    ]
    for path in (write_parquet(tmp_path / "a.parquet", rows), write_jsonl(tmp_path / "a.jsonl", rows)):
        (batch,) = read_problems([path])
        assert batch.rows == 3
        assert [problem.question for problem in batch.problems] == ["one?"]
        assert batch.unusable == [f"{path.name} row 1: no answer", f"{path.name} row 2: no question"]


def test_repeated_pairs_of_a_parquet_batch_come_once_with_their_number(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [dapo_row("one?", "1")] * 3 + [dapo_row("one?", "2")])
    (batch,) = read_problems([path])
    assert [(problem.answer, problem.row, problem.times) for problem in batch.problems] == [
        ("1", 0, 3),
        ("2", 3, 1),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"problem": "one?", "answer": "1"}\n{"problem": ', "row 1 is no JSON"),
        ("a.jsonl", "[1, 2]\n", "row 0 is no object"),
        ("a.jsonl", '{"text": "one?"}\n', "has the columns 'text'; needed are"),
        ("a.jsonl", b'{"problem": "\xff"}\n', "row 0 is no UTF-8 text: invalid start byte at byte 13"),
        ("a.json", "{", "row 0 is no JSON"),
        ("a.parquet", "no parquet", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message) as caught:
        pairs_of(path)
    assert str(path) in str(caught.value)

import json

import pytest
from data_files import write_jsonl, write_parquet

from flashreinforce_molt.data import DataError, PreparedRows


def row(number, **changes):
    return {
        "datasource": "test",
        "prompt": [{"role": "user", "content": f"Question {number}?"}],
        "reward_model": {"ground_truth": str(number), "style": "boxed"},
        "prompt_id": f"test-{number}",
        "question": f"Question {number}?",
        **changes,
    }


@pytest.fixture(params=[".parquet", ".jsonl"])
def write(request, tmp_path):
    def write(rows):
        path = tmp_path / f"rows{request.param}"
        return write_parquet(path, rows) if request.param == ".parquet" else write_jsonl(path, rows)

    return write


def test_a_row_becomes_a_task(write):
    tasks = PreparedRows(write([row(0), row(1)]))
    assert len(tasks) == 2
    assert tasks[1].prompt_id == "test-1"
    assert tasks[1].data == {
        "prompt": [{"role": "user", "content": "Question 1?"}],
        "gold": "1",
        "question": "Question 1?",
        "datasource": "test",
    }
    assert [task.prompt_id for task in tasks[:2]] == ["test-0", "test-1"]
    assert tasks[-1].prompt_id == "test-1"
    with pytest.raises(IndexError, match="row 2 of 2"):
        tasks[2]


def test_tool_schemas_travel_with_the_task(write):
    schema = [{"type": "function", "function": {"name": "python"}}]
    assert PreparedRows(write([row(0, tools=schema)]))[0].data["tools"] == schema


def test_each_pass_holds_every_row_once_in_another_order(write):
    order = PreparedRows(write([row(number) for number in range(20)])).training_order(seed=3)
    passes = [
        [order[position].prompt_id for position in range(start, start + 20)] for start in (0, 20, 40_000)
    ]
    assert all(sorted(one) == sorted(passes[0]) and len(set(one)) == 20 for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_the_order_is_that_of_the_seed_and_any_position_can_be_resumed(write):
    path = write([row(number) for number in range(20)])
    order = PreparedRows(path).training_order(seed=3)
    whole = [order[position].prompt_id for position in range(100)]
    resumed = PreparedRows(path).training_order(seed=3)
    assert [resumed[position].prompt_id for position in range(57, 100)] == whole[57:]
    other = PreparedRows(path).training_order(seed=4)
    assert [other[position].prompt_id for position in range(100)] != whole


def test_the_order_of_a_seed_never_changes(write):
    """A run that is resumed under another version must go on with the same data."""
    order = PreparedRows(write([row(number) for number in range(8)])).training_order(seed=0)
    assert [int(order[position].data["gold"]) for position in range(16)] == [
        *(0, 6, 4, 3, 1, 7, 2, 5),
        *(0, 6, 7, 3, 4, 1, 5, 2),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, r"row 1: prompt=\[\] is no list of messages"),
        ({"prompt": [{"role": "user", "content": " "}]}, "row 1: prompt holds .* instead of a message"),
        ({"prompt": [{"role": "user", "content": None}]}, "row 1: prompt holds .* instead of a message"),
        (
            {"reward_model": {"ground_truth": "", "style": "boxed"}},
            "row 1: reward_model.ground_truth='' is no answer",
        ),
        ({"reward_model": None}, "row 1: reward_model.ground_truth=None is no answer"),
    ],
)
def test_a_bad_row_is_named_when_the_file_is_opened(write, changes, message):
    path = write([row(0), row(1, **changes), row(2)])
    with pytest.raises(DataError, match=message) as caught:
        PreparedRows(path)
    assert str(path) in str(caught.value)


def test_rows_of_others_may_lack_our_columns(write):
    bare = {name: value for name, value in row(0).items() if name in ("prompt", "reward_model")}
    task = PreparedRows(write([bare]))[0]
    assert len(task.prompt_id) == 16
    assert (task.data["question"], task.data["datasource"]) == ("Question 0?", "default")


def test_files_that_cannot_be_read_say_why(tmp_path):
    for name, content, message in (
        ("absent.parquet", None, "does not exist; `flashreinforce-molt prepare` writes it"),
        ("a.csv", "x", r"is neither \.parquet nor \.jsonl"),
        ("a.parquet", "x", "cannot be read"),
        ("a.jsonl", json.dumps(row(0)) + "\n{", "row 1 is no JSON"),
        ("empty.jsonl", "", "has no rows"),
        ("b.jsonl", "[]\n", "row 0 is no object"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=message):
            PreparedRows(tmp_path / name)

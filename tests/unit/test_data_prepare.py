import hashlib
import json
import shutil

import pyarrow.parquet as pq
import pytest
from data_files import benchmark_rows, dapo_row, questions, write_benchmarks, write_jsonl, write_parquet

from flashreinforce_molt.data import DataError, PreparedRows
from flashreinforce_molt.data.prepare import Request, prepare
from flashreinforce_molt.data.questions import question_key


@pytest.fixture
def said():
    return []


@pytest.fixture
def request_of(tmp_path, said):
    def make(source=None, **options):
        sources = {"": source} if source else {}
        return Request(tmp_path / "data", sources, **{"lock_file": None, "say": said.append, **options})

    return make


def read(path):
    return pq.read_table(path).to_pylist()


def report_of(tmp_path, name):
    return json.loads((tmp_path / "data" / name / "report.json").read_text())


# dapo


def test_dapo_is_deduplicated_chosen_by_hash_and_every_row_accounted_for(tmp_path, request_of, said):
    rows = [dapo_row(question, answer) for question, answer in questions(20)]
    rows += [
        dapo_row("  " + question + "\n", answer) for question, answer in questions(20)
    ]  # the same, spelt otherwise
    rows += [dapo_row(question, "other") for question, _ in questions(3)]  # conflicting
    rows += [dapo_row("No answer?", ""), dapo_row("", "1")]
    source = write_parquet(tmp_path / "dapo.parquet", rows, row_group_size=8)
    prepare("dapo", request_of(source, rows=10))

    agreed = sorted(question_key(question).hex() for question, _ in questions(20)[3:])
    written = read(tmp_path / "data" / "dapo" / "train.parquet")
    assert [row["prompt_id"] for row in written] == [f"dapo-{key[:16]}" for key in agreed[:10]]
    report = report_of(tmp_path, "dapo")
    counts = {
        name: report[name]
        for name in ("rows", "unusable", "repeated", "conflicting_questions", "distinct", "chosen")
    }
    assert counts == {
        "rows": 45,
        "unusable": 2,
        "repeated": 23,
        "conflicting_questions": 3,
        "distinct": 17,
        "chosen": 10,
    }
    assert report["unusable_rows"] == ["dapo.parquet row 43: no answer", "dapo.parquet row 44: no question"]
    assert (
        "  45 rows - 2 unusable (first: dapo.parquet row 43: no answer) - 23 repeated - 3 with conflicting answers "
        "= 17 questions, 10 taken" in said
    )


def test_the_list_depends_on_questions_and_answers_and_on_nothing_else(tmp_path, request_of):
    def hash_of(pairs):
        source = write_parquet(tmp_path / "dapo.parquet", [dapo_row(*pair) for pair in pairs])
        prepare("dapo", request_of(source, rows=5))
        return report_of(tmp_path, "dapo")["list_sha256"]

    pairs = questions(9)
    first = hash_of(pairs)
    assert hash_of(pairs[::-1] + pairs) == first
    assert hash_of([(question, answer + " ") for question, answer in pairs]) == first
    assert hash_of([(question, answer + "1") for question, answer in pairs]) != first


def test_prepared_rows_have_molts_schema_and_our_template(tmp_path, request_of):
    prepare(
        "dapo", request_of(write_parquet(tmp_path / "dapo.parquet", [dapo_row("How many?", "7")]), rows=1)
    )
    (row,) = read(tmp_path / "data" / "dapo" / "train.parquet")
    key = hashlib.sha256(b"How many?").hexdigest()
    assert row == {
        "datasource": "dapo",
        "prompt": [
            {
                "role": "user",
                "content": "How many?\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
            }
        ],
        "reward_model": {"ground_truth": "7", "style": "boxed"},
        "prompt_id": f"dapo-{key[:16]}",
        "question": "How many?",
    }


def test_too_few_questions_are_an_error_with_both_numbers(tmp_path, request_of):
    source = write_parquet(tmp_path / "dapo.parquet", [dapo_row(*pair) for pair in questions(5)])
    with pytest.raises(DataError, match="only 5 distinct questions with one answer, fewer than the 7,500"):
        prepare("dapo", request_of(source))
    assert not (tmp_path / "data").exists()


# sanity_r1


def test_sanity_r1_takes_the_training_split_and_asserts_its_size(tmp_path, request_of):
    folder = tmp_path / "sanity"
    write_parquet(folder / "train.parquet", [dapo_row(*pair) for pair in questions(1460)])
    write_parquet(folder / "test.parquet", [dapo_row(*pair) for pair in questions(60, "test")])
    prepare("sanity_r1", request_of(folder))
    assert len(PreparedRows(tmp_path / "data" / "sanity_r1" / "train.parquet")) == 1460
    write_parquet(folder / "train.parquet", [dapo_row(*pair) for pair in questions(1459)])
    with pytest.raises(DataError, match="sanity_r1 has 1,459 questions instead of 1,460"):
        prepare("sanity_r1", request_of(folder))


# math_eval


def test_six_benchmarks_of_six_schemas_have_their_published_sizes(tmp_path, request_of):
    prepare("math_eval", request_of(write_benchmarks(tmp_path / "sources")))
    sizes = {
        path.stem: pq.read_metadata(path).num_rows
        for path in (tmp_path / "data" / "math_eval").glob("*.parquet")
    }
    assert sizes == {
        "aime24": 30,
        "aime25": 30,
        "amc23": 40,
        "math500": 500,
        "minerva": 272,
        "olympiadbench": 674,
    }
    olympiad = read(tmp_path / "data" / "math_eval" / "olympiadbench.parquet")
    assert olympiad[3]["reward_model"] == {"ground_truth": "3", "style": "boxed"}
    assert olympiad[3]["datasource"] == "olympiadbench"


def test_the_sets_that_recipes_evaluate_on_are_counted(tmp_path, request_of, said):
    folder = write_benchmarks(tmp_path / "sources")
    rows = benchmark_rows("amc23", 40, "question")
    rows[5]["question"] = questions(500, "math500")[9][0]
    write_parquet(folder / "amc23" / "data" / "test-00000-of-00001.parquet", rows)
    prepare("math_eval", request_of(folder))
    report = report_of(tmp_path, "math_eval")
    assert report["evaluations"] == {"aime": 60, "three_benchmarks": 342, "five_benchmarks": 1516}
    assert report["shared_questions"] == [["amc23", "math500"]]
    assert "three_benchmarks: amc23, minerva, aime25: 342 questions" in said


def test_copies_of_evaluation_questions_are_removed(tmp_path, request_of):
    """One published copy of AIME24 holds every problem 32 times."""
    folder = write_benchmarks(tmp_path / "sources")
    write_parquet(
        folder / "aime24" / "data" / "train-00000-of-00001.parquet",
        [dapo_row(*pair) for pair in questions(30, "aime24") for _ in range(32)],
    )
    prepare("math_eval", request_of(folder))
    assert len(PreparedRows(tmp_path / "data" / "math_eval" / "aime24.parquet")) == 30
    assert report_of(tmp_path, "math_eval")["aime24"]["repeated"] == 930


def test_a_benchmark_of_another_size_is_named_and_the_others_are_written(tmp_path, request_of):
    folder = write_benchmarks(tmp_path / "sources", aime25=29)
    with pytest.raises(
        DataError, match="1 of 6 benchmarks are not prepared:\n  - aime25 has 29 questions instead of 30"
    ):
        prepare("math_eval", request_of(folder))
    written = {path.stem for path in (tmp_path / "data" / "math_eval").glob("*.parquet")}
    assert written == {"aime24", "amc23", "math500", "minerva", "olympiadbench"}


def test_a_repeated_aime_question_does_not_hide_that_one_is_missing(tmp_path, request_of):
    folder = write_benchmarks(tmp_path / "sources")
    rows = benchmark_rows("aime25", 29)
    write_jsonl(folder / "aime25" / "test.jsonl", [*rows, rows[0]])
    with pytest.raises(DataError, match="aime25 has 29 questions instead of 30"):
        prepare("math_eval", request_of(folder))


def test_conflicting_evaluation_answers_are_refused_with_their_row(tmp_path, request_of):
    folder = write_benchmarks(tmp_path / "sources")
    rows = benchmark_rows("aime25", 30)
    write_jsonl(folder / "aime25" / "test.jsonl", [*rows, {**rows[4], "answer": "5000"}])
    with pytest.raises(
        DataError, match=r"aime25: 1 questions have several answers, the first in .*test\.jsonl row 4"
    ):
        prepare("math_eval", request_of(folder))


def test_repeats_stay_where_the_published_size_counts_them(tmp_path, request_of, said):
    folder = write_benchmarks(tmp_path / "sources")
    rows = benchmark_rows("minerva", 271, "question")
    (folder / "minerva.json").write_text(json.dumps([*rows, rows[7]]))
    prepare("math_eval", request_of(folder))
    assert len(PreparedRows(tmp_path / "data" / "math_eval" / "minerva.parquet")) == 272
    assert any("are kept: minerva has 272 rows as published" in line for line in said)


def test_another_size_can_be_asked_for(tmp_path, request_of, said):
    folder = write_benchmarks(tmp_path / "sources", aime25=29)
    prepare("math_eval", request_of(folder, allow_other_counts=True))
    assert "warning: aime25 has 29 questions instead of 30" in said


# contamination


def test_evaluation_questions_in_the_training_data_are_counted_and_listed(tmp_path, request_of, said):
    prepare("math_eval", request_of(write_benchmarks(tmp_path / "sources")))
    assert any(line.startswith("contamination: not checked, since dapo or sanity_r1") for line in said)
    exact, near = questions(40, "amc23")[0], questions(30, "aime24")[1]
    pairs = [
        *questions(8, "training"),
        (exact[0].upper(), "1"),
        (f"Please tell me, dear reader: {near[0]}", "2"),
    ]
    source = write_parquet(tmp_path / "dapo.parquet", [dapo_row(*pair) for pair in pairs])
    prepare("dapo", request_of(source, rows=10))
    found = report_of(tmp_path, "dapo")["contamination"]
    assert (found["amc23 in dapo"]["exact"], found["amc23 in dapo"]["near"]) == (1, 0)
    assert (found["aime24 in dapo"]["exact"], found["aime24 in dapo"]["near"]) == (0, 1)
    assert (found["math500 in dapo"]["exact"], found["math500 in dapo"]["near"]) == (0, 0)
    (place,) = found["amc23 in dapo"]["rows"]
    written = read(tmp_path / "data" / "dapo" / "train.parquet")
    assert (place["evaluation"], written[place["training"]]["question"]) == (0, exact[0].upper())
    assert "contamination: of 40 amc23 questions 1 stand in dapo, 0 more nearly" in said

    said.clear()
    prepare("math_eval", request_of(tmp_path / "sources"))  # the other way round
    assert "contamination: of 40 amc23 questions 1 stand in dapo, 0 more nearly" in said


# tools


def test_tools_poses_the_prepared_questions_with_the_tools_schema(tmp_path, request_of):
    prepare(
        "dapo",
        request_of(
            write_parquet(tmp_path / "dapo.parquet", [dapo_row(*pair) for pair in questions(9)]), rows=9
        ),
    )
    prepare("math_eval", request_of(write_benchmarks(tmp_path / "sources")))
    prepare("tools", request_of())
    folder = tmp_path / "data" / "tools"
    assert {path.stem for path in folder.glob("*.parquet")} == {"train", "amc23", "minerva", "aime25"}
    plain, tools = read(tmp_path / "data" / "dapo" / "train.parquet"), read(folder / "train.parquet")
    assert [row["question"] for row in tools] == [row["question"] for row in plain]
    assert [row["reward_model"] for row in tools] == [row["reward_model"] for row in plain]
    (tool,) = tools[0]["tools"]
    assert tool["function"]["name"] == "python"
    assert tool["function"]["parameters"]["required"] == ["code"]
    assert [message["role"] for message in tools[0]["prompt"]] == ["system", "user"]
    assert tools[0]["prompt"][1]["content"] == tools[0]["question"]
    assert report_of(tmp_path, "tools")["train"]["list_sha256"] == report_of(tmp_path, "dapo")["list_sha256"]


def test_tools_prepares_from_sources_what_was_not_prepared_before(tmp_path, request_of):
    folder = write_benchmarks(tmp_path / "sources")
    write_parquet(
        folder / "dapo" / "data" / "dapo-math-17k.parquet", [dapo_row(*pair) for pair in questions(9)]
    )
    prepare("tools", request_of(folder, rows=9))
    assert len(PreparedRows(tmp_path / "data" / "tools" / "train.parquet")) == 9
    assert len(PreparedRows(tmp_path / "data" / "tools" / "minerva.parquet")) == 272


# alfworld


def write_game(root, split, name, *, task_type="pick_and_place_simple", solvable=True, game=True):
    folder = root / "json_2.1.1" / split / name / "trial_1"
    folder.mkdir(parents=True)
    (folder / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
    if game:
        (folder / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))


@pytest.fixture
def games(tmp_path):
    root = tmp_path / "alfworld"
    for split in ("train", "valid_seen", "valid_unseen"):
        for number in range(6):
            write_game(root, split, f"game-{number}")
        write_game(root, split, "game-Sliced-1")
        write_game(root, split, "movable_receptacle-1")
        write_game(root, split, "stack", task_type="pick_and_place_with_movable_recep")
        write_game(root, split, "unbuilt", game=False)
        write_game(root, split, "impossible", solvable=False)
    return root


def test_game_lists_follow_the_packages_filter_and_are_relative(
    tmp_path, games, request_of, said, monkeypatch
):
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    prepare("alfworld", request_of(rows=4, allow_other_counts=True))
    seen = read(tmp_path / "data" / "alfworld" / "valid_seen.parquet")
    assert [row["reward_model"]["ground_truth"] for row in seen] == [
        f"json_2.1.1/valid_seen/game-{number}/trial_1/game.tw-pddl" for number in range(6)
    ]
    assert len(PreparedRows(tmp_path / "data" / "alfworld" / "train.parquet")) == 4
    counts = report_of(tmp_path, "alfworld")["train"]
    assert {name: counts[name] for name in counts if name != "list_sha256"} == {
        "trials": 11,
        "sliced_or_movable": 2,
        "other_task_type": 1,
        "without_game_file": 1,
        "unsolvable": 1,
        "games": 6,
        "chosen": 4,
    }
    assert "warning: ALFWorld's split valid_seen has 6 games instead of 140" in said


def test_the_chosen_games_do_not_depend_on_the_folder(tmp_path, games, request_of):
    prepare("alfworld", request_of(games, rows=4, allow_other_counts=True))
    before = report_of(tmp_path, "alfworld")["train"]["list_sha256"]
    shutil.move(games, tmp_path / "elsewhere")
    prepare("alfworld", request_of(tmp_path / "elsewhere" / "json_2.1.1", rows=4, allow_other_counts=True))
    assert report_of(tmp_path, "alfworld")["train"]["list_sha256"] == before


def test_absent_games_say_how_to_get_them(tmp_path, games, request_of, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(DataError, match="ALFWORLD_DATA is not set; fetch the games with alfworld-download"):
        prepare("alfworld", request_of())
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"ALFWORLD_DATA=.* holds no folder json_2\.1\.1"):
        prepare("alfworld", request_of())
    with pytest.raises(DataError, match=r"split train has 6 games instead of 1,024"):
        prepare("alfworld", request_of(games))
    (games / "json_2.1.1" / "train" / "game-1" / "trial_1" / "game.tw-pddl").write_text("{")
    with pytest.raises(DataError, match=r"game-1/trial_1/game\.tw-pddl cannot be read"):
        prepare("alfworld", request_of(games))

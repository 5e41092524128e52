"""Small source files in every schema that preparation reads."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_BEHIND = '\n\nRemember to put your answer on its own line after "Answer:".'


def dapo_row(question, answer, index="0"):
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{DAPO_BEFORE}{question}{DAPO_BEHIND}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def questions(number, name="question"):
    return [(f"What is the {name} of number {n} in the list of all things?", str(n)) for n in range(number)]


def write_parquet(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def benchmark_rows(name, number, question="problem", answer="answer"):
    return [{question: text, answer: gold, "id": n} for n, (text, gold) in enumerate(questions(number, name))]


def write_benchmarks(folder, **numbers):
    """All six benchmarks, each as it is published: format, columns and number of rows."""
    wanted = {
        "aime24": 30,
        "aime25": 30,
        "amc23": 40,
        "math500": 500,
        "minerva": 272,
        "olympiadbench": 674,
    } | numbers
    write_parquet(
        folder / "aime24" / "data" / "train-00000-of-00001.parquet",
        benchmark_rows("aime24", wanted["aime24"]),
    )
    write_jsonl(folder / "aime25" / "test.jsonl", benchmark_rows("aime25", wanted["aime25"]))
    write_parquet(
        folder / "amc23" / "data" / "test-00000-of-00001.parquet",
        benchmark_rows("amc23", wanted["amc23"], "question"),
    )
    write_jsonl(folder / "MATH-500" / "test.jsonl", benchmark_rows("math500", wanted["math500"]))
    (folder / "minerva.json").write_text(json.dumps(benchmark_rows("minerva", wanted["minerva"], "question")))
    rows = benchmark_rows("olympiadbench", wanted["olympiadbench"], "question", "final_answer")
    write_parquet(
        folder / "olympiadbench" / "test.parquet",
        [{**row, "final_answer": [row["final_answer"]]} for row in rows],
    )
    return folder

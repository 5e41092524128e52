import pytest

from flashreinforce_molt.data import DataError
from flashreinforce_molt.data.files import local_files, split_files


@pytest.mark.parametrize(
    ("names", "split", "chosen"),
    [
        (["README.md", "data/train-00000-of-00001.parquet"], "train", ["data/train-00000-of-00001.parquet"]),
        (["data/dapo-math-17k.parquet", ".gitattributes"], "train", ["data/dapo-math-17k.parquet"]),
        (["test.jsonl", "README.md"], "test", ["test.jsonl"]),
        (["train.parquet", "test.parquet"], "test", ["test.parquet"]),
        (["a.json", "a.parquet"], "train", ["a.parquet"]),
        (["train/a.jsonl", "test/a.jsonl"], "train", ["train/a.jsonl"]),
        (["dataset_infos.json", "rows.json"], "test", ["rows.json"]),
        (
            ["x/train-00001-of-00002.parquet", "x/train-00000-of-00002.parquet"],
            "train",
            ["x/train-00000-of-00002.parquet", "x/train-00001-of-00002.parquet"],
        ),
        ([".cache/huggingface/train.parquet", "train.jsonl"], "train", ["train.jsonl"]),
    ],
)
def test_the_files_of_a_split_are_found(names, split, chosen):
    assert split_files(names, split, where="here") == chosen


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["README.md"], "here holds no .parquet"),
        (["test.parquet"], "no files of the split 'train', only test.parquet"),
        (["a.parquet", "b.parquet"], "several files, a.parquet, b.parquet; give the one"),
        (
            ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
            "2 of the 3 parts of train; the copy is incomplete",
        ),
    ],
)
def test_an_unclear_or_incomplete_folder_is_refused(names, message):
    with pytest.raises(DataError, match=message):
        split_files(names, "train", where="here")


def test_a_path_that_is_absent_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        local_files(tmp_path / "absent", "train")
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"is no \.parquet, \.jsonl, \.json file"):
        local_files(tmp_path / "a.csv", "train")

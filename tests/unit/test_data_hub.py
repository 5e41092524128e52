import json
import socket
import time

import pytest
from data_files import benchmark_rows, write_benchmarks
from hub_stand_in import StandInHub

from flashreinforce_molt.data import DataError, hub
from flashreinforce_molt.data.hub import hub_files
from flashreinforce_molt.data.locks import read_lock, write_lock
from flashreinforce_molt.data.prepare import Request, prepare

COMMIT, LATER = "a" * 40, "b" * 40


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub._unreachable.cache_clear()


@pytest.fixture
def stand_in(monkeypatch):
    files = {"README.md": b"# test", "test.jsonl": lines(benchmark_rows("aime25", 30)), "train.jsonl": b"{}"}
    with StandInHub({"math-ai/aime25": (COMMIT, files)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_the_split_is_downloaded_at_the_commit_that_the_hub_names(stand_in):
    found = hub_files("math-ai/aime25", "test", None)
    assert found.revision == COMMIT
    assert [path.name for path in found.files] == ["test.jsonl"]
    assert found.files[0].read_bytes() == lines(benchmark_rows("aime25", 30))
    assert not any("train.jsonl" in path for path in stand_in.requests)


def test_a_pinned_revision_in_the_cache_needs_no_network(stand_in, monkeypatch):
    downloaded = hub_files("math-ai/aime25", "test", COMMIT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (
        hub_files("math-ai/aime25", "test", COMMIT).files[0].read_bytes() == downloaded.files[0].read_bytes()
    )
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set, and the hub's cache does not hold it"):
        hub_files("math-ai/aime25", "test", LATER)


@pytest.mark.parametrize(
    ("id", "revision", "message"),
    [
        ("math-ai/absent", None, "the hub knows no such data set, or it is private"),
        ("math-ai/aime25", LATER, f"the hub has no revision {LATER} of it"),
    ],
)
def test_an_absent_data_set_or_revision_says_what_to_do(stand_in, id, revision, message):
    before = time.monotonic()
    with pytest.raises(DataError, match=message) as caught:
        hub_files(id, "test", revision)
    assert time.monotonic() - before < 2
    assert f"hf download --repo-type dataset {id}" in str(caught.value)
    assert "--source" in str(caught.value)


def test_without_network_it_fails_within_two_seconds(monkeypatch):
    with socket.socket() as silent:  # accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for endpoint, reason in (
            (f"http://127.0.0.1:{silent.getsockname()[1]}", "no answer within|timed out"),
            ("http://127.0.0.1:9", "refused"),
            ("http://no-such-host.invalid", "."),
        ):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            before = time.monotonic()
            with pytest.raises(DataError, match=f"does not answer .*({reason})"):
                hub_files("math-ai/aime25", "test", COMMIT)
            assert time.monotonic() - before < 2


def test_six_benchmarks_without_network_wait_only_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "PROBE_LIMIT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        before = time.monotonic()
        with pytest.raises(DataError, match="6 of 6 benchmarks are not prepared"):
            prepare("math_eval", Request(tmp_path, lock_file=None, say=lambda line: None))
        assert time.monotonic() - before < 1


# Locks


@pytest.fixture
def request_with_lock(tmp_path):
    """Everything but AIME25 is local."""
    folder = write_benchmarks(tmp_path / "sources")
    names = {"aime24": "aime24", "amc23": "amc23", "math500": "MATH-500", "minerva": "minerva.json"}
    sources = {name: folder / path for name, path in names.items()} | {
        "olympiadbench": folder / "olympiadbench"
    }
    return Request(tmp_path / "data", sources, lock_file=tmp_path / "datasets.json", say=lambda line: None)


def test_the_first_resolution_is_locked_and_holds_afterwards(tmp_path, stand_in, request_with_lock):
    prepare("math_eval", request_with_lock)
    report = json.loads((tmp_path / "data" / "math_eval" / "report.json").read_text())
    entry = read_lock("math-ai/aime25", request_with_lock.lock_file)
    assert entry["revision"] == COMMIT
    assert entry["list_sha256"] == report["aime25"]["list_sha256"]
    assert set(json.loads(request_with_lock.lock_file.read_text())) == {
        "math-ai/aime25"
    }  # local ones have no revision

    stand_in.repositories["math-ai/aime25"] = (LATER, {"test.jsonl": lines(benchmark_rows("other", 30))})
    prepare("math_eval", request_with_lock)  # the hub moved on; the locked commit is in the cache
    assert json.loads((tmp_path / "data" / "math_eval" / "report.json").read_text()) == report


def test_a_list_that_is_not_the_locked_one_is_refused(stand_in, request_with_lock):
    write_lock("math-ai/aime25", {"revision": COMMIT, "list_sha256": "0" * 64}, request_with_lock.lock_file)
    with pytest.raises(
        DataError, match=r"aime25: the list of math-ai/aime25 at a* has the hash .* 0* was locked"
    ):
        prepare("math_eval", request_with_lock)


def test_a_revision_of_ones_own_is_not_locked(stand_in, request_with_lock):
    write_lock("math-ai/aime25", {"revision": LATER}, request_with_lock.lock_file)
    request = Request(**{**vars(request_with_lock), "revisions": {"aime25": COMMIT}})
    prepare("math_eval", request)
    assert read_lock("math-ai/aime25", request.lock_file) == {"revision": LATER}


def test_a_lock_is_added_to_and_never_changed(tmp_path):
    path = tmp_path / "datasets.json"
    assert read_lock("a/b", path) == {}
    assert write_lock("a/b", {"revision": COMMIT, "source": "one"}, path)
    assert write_lock("a/b", {"revision": COMMIT, "source": "two", "list_sha256": "1"}, path)
    assert read_lock("a/b", path) == {"revision": COMMIT, "source": "one", "list_sha256": "1"}
    assert not write_lock("a/b", {"revision": COMMIT}, path)
    with pytest.raises(DataError, match=f"locks a/b to revision {COMMIT}, but this is {LATER}"):
        write_lock("a/b", {"revision": LATER}, path)
    path.write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        read_lock("a/b", path)


def test_the_shipped_lock_pins_dapo():
    assert (
        read_lock("BytedTsinghua-SIA/DAPO-Math-17k")["revision"] == "65877096c24ffa7abc4e4fa5edb95cf3413a5674"
    )

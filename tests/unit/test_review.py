"""The dry run as a person and as a program see it."""

import json
import os
import pty
import shlex
import subprocess
import sys

import pytest
from golden_reviews import FOLDER, GOLDEN, ROOT, produce
from published import EVERY, flags_of, review_of

from flashreinforce_molt.molt.interface import arguments
from flashreinforce_molt.review import as_data
from flashreinforce_molt.review.differences import difference_page
from flashreinforce_molt.review.layout import PLAIN_WIDTH, columns, plain
from flashreinforce_molt.review.pages import PAGES, WRONG_COMMANDS, messages
from flashreinforce_molt.review.secrets import without_secrets
from flashreinforce_molt.review.text import page, standing


@pytest.fixture(autouse=True)
def _no_games(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_review_is_as_committed(name):
    code, text = produce(GOLDEN[name])
    assert text == (FOLDER / name).read_text("utf-8"), "meant? then run python tests/unit/golden_reviews.py"
    assert code == (2 if name == "mistakes.txt" else 0)


def test_the_json_has_the_promised_keys():
    data = json.loads(produce("--format json")[1])
    assert data["recipe"] == "r1"
    assert list(data) == [
        *("recipe", "variants", "engine", "pins", "flags", "checks", "plan", "command", "env", "start"),
    ]
    assert all(set(flag) == {"value", "source", "layer", "replaced"} for flag in data["flags"].values())
    assert all({"id", "level", "message"} <= set(check) for check in data["checks"])
    assert data["flags"]["flash.delta"]["value"] == 3e-3
    assert all(isinstance(word, str) for word in data["command"])


def test_flags_carry_molts_names_on_molt_and_ours_elsewhere():
    assert "train.async_queue_size" in flags_of(review_of("r1"))
    local = flags_of(review_of("quickstart"))
    assert "rollout.queue_depth" in local
    assert not any(name.startswith(("molt.", "cluster.", "data.")) for name in local)


def test_the_command_is_the_flags_with_shell_quoting():
    review = review_of("r1", 'environment.options={note: "a b"}')
    assert list(review.command[3:]) == arguments(flags_of(review))
    text = plain(page(review, PLAIN_WIDTH))
    shown = text[text.index("EXACT COMMAND") :].split("\n\n")[0].partition("\n")[2]
    assert shlex.split(shown.replace("\\\n", " ")) == list(review.command)
    assert """'{"note": "a b"}'""" in shown


def test_the_start_lines_repeat_the_request():
    review = review_of("moe", "trust_ablation", "no_is", "seed=3")
    assert review.start[-1] == (
        "python scripts/train_molt.py --recipe moe --variant trust_ablation --variant no_is --set seed=3"
    )
    assert review.start[-2].startswith("flashreinforce-molt doctor --recipe moe --variant trust_ablation")
    assert review_of("quickstart").command == ("python", "scripts/train_molt.py", "--recipe", "quickstart")


def test_only_molts_flags_start_molts_own_entry_point():
    review = review_of("qwen_math", "molt.native=false", "molt.agent=my_agent.py")
    assert review.command[:3] == ("python", "-m", "molt.cli.train_rl_ray")
    assert not any(word.startswith("--flash.") for word in review.command)
    assert review_of("qwen_math").command[2] == "flashreinforce_molt.molt.launch"


def test_what_differs_from_the_recipe_and_what_is_ours_is_marked():
    settings = review_of("r1", "gate_5e3", "optim.lr=2e-6", "seed=0").experiment.settings
    assert standing(settings["objective.delta"]) == "changed"
    assert standing(settings["optim.lr"]) == "changed"
    assert standing(settings["seed"]) == ""  # set to what it was
    assert standing(settings["data.path"]) == "ours"
    assert standing(settings["rollout.in_flight"]) == ""
    text = plain(page(review_of("r1", "optim.lr=2e-6"), PLAIN_WIDTH))
    assert "*   optim.lr" in text
    assert "replaces 1e-06 (base: published shared" in " ".join(text.split())


def test_lines_fit_the_width_where_words_allow_it():
    for names in (("r1",), ("quickstart",)):
        for line in plain(page(review_of(*names), PLAIN_WIDTH)).splitlines():
            if not line.startswith("  hf download") and " \\" not in line:
                assert len(line) <= PLAIN_WIDTH, line


def test_a_cell_that_is_too_wide_moves_the_rest_down():
    lines = columns([[("name", ""), ("a very long value", ""), ("why", "")]], (6, 8), 60)
    assert plain(lines).splitlines() == ["name    a very long value", " " * 18 + "why"]


def test_longer_context_and_games_need_environment_variables():
    assert as_data(review_of("qwen_math"))["env"] == {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert as_data(review_of("alfworld"))["env"] == {"ALFWORLD_DATA": None}
    assert as_data(review_of("r1"))["env"] == {}


def test_no_review_changes_when_secrets_are_removed():
    for names in EVERY:
        review = review_of(*names)
        assert without_secrets(review, as_data(review)) == as_data(review), names


def test_secrets_are_neither_shown_nor_launched(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    words = (
        "--set molt.flags.logger.wandb.key=0123456789abcdef --set model.id=/x/hf_abcdefghijklmnopqrstuvwxyz "
        "--set environment.options.url=https://user:hunter2hunter2@host/x"
    )
    for form in ("text", "json"):
        code, text = produce(f"--recipe r1 {words} --format {form}")
        assert code == 2
        for secret in ("0123456789abcdef", "hf_abcdefghij", "hunter2"):
            assert secret not in text
        assert "export WANDB_API_KEY instead" in " ".join(text.split())


def test_a_difference_shows_both_sides_and_their_sources():
    code, text = produce("--recipe r1 --diff :gate_5e3")
    assert code == 0
    assert "DIFFERENT: 1 SETTING\n" in text
    assert "Molt's quick start" in text
    data = json.loads(produce("--recipe r1 --diff moe --format json")[1])
    assert data["differences"]["train.updates"]["left"]["value"] == 4200
    assert data["left"]["recipe"] == "r1"
    assert "the same" in produce("--recipe r1 --diff r1")[1]


def test_the_pages_are_current():
    for path, make in PAGES.items():
        assert (ROOT / path).read_text("utf-8") == make(), "run python -m flashreinforce_molt.review.pages"


def test_each_wrong_command_is_refused():
    assert len(WRONG_COMMANDS) >= 10
    for command in WRONG_COMMANDS:
        assert messages(command), command


def test_the_dry_run_loads_no_heavy_library_and_reads_no_network():
    script = (
        "import sys, io, contextlib\n"
        "from flashreinforce_molt.cli import train_main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert train_main(['--dry-run', '--recipe', 'moe', '--format', 'json']) == 0\n"
        "    assert train_main(['--dry-run']) == 0\n"
        "heavy = ('torch', 'transformers', 'ray', 'vllm', 'numpy', 'rich', 'molt', 'huggingface_hub', 'pyarrow')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_terminal_gets_colours_and_a_pipe_none():
    command = [sys.executable, "scripts/train_molt.py", "--dry-run", "--recipe", "quickstart"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "\x1b" not in piped
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=writer, stderr=writer, cwd=ROOT, env=environment) as process:
        os.close(writer)
        seen = b""
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        assert process.wait() == 0
    os.close(reader)
    assert b"\x1b[" in seen
    assert b"how to start" in seen.lower()


def test_a_change_made_twice_still_shows_what_the_recipe_says():
    text = plain(page(review_of("r1", "optim.lr=2e-6", "optim.lr=3e-6"), 400))
    assert (
        "replaces 2e-06 (--set: command line), before that 1e-06 (base: published shared setting: AdamW, 1e-6)"
        in text
    )
    assert "--set: command line; base: 1e-06, published shared setting: AdamW, 1e-6" in text


@pytest.mark.parametrize(
    "words", [["optim.lr=1e-6"], ["optim.lr=2e-6", "optim.lr=1e-6"], ["gate_5e3", "objective.delta=3e-3"]]
)
def test_a_value_that_equals_the_recipes_is_no_difference(words):
    assert "NOT AS IN THE RECIPE" not in plain(page(review_of("r1", *words), 120))


def test_the_data_say_what_was_replaced():
    flag = as_data(review_of("r1", "gate_5e3", "objective.delta=1e-2"))["flags"]["flash.delta"]
    assert [(entry["layer"], entry["value"]) for entry in flag["replaced"]] == [
        ("recipe", 3e-3),
        ("variant gate_5e3", 5e-3),
    ]


def test_a_comparison_cuts_no_source():
    text = plain(difference_page(review_of("r1"), review_of("moe"), 120))
    assert "..." not in "".join(line for line in text.splitlines() if "published" in line or "ours" in line)
    assert "public 20-turn" in text


def test_the_tokens_of_an_update_say_why_they_are_only_a_bound():
    assert "no mean length is published" in " ".join(plain(page(review_of("r1"), 120)).split())

import subprocess
import sys

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")

from molt_command import molt_command

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.molt.cli_block import UnsupportedMolt, _block, parse_molt_command


def test_our_choices_and_options_arrive_in_the_namespace_that_molt_trains_with():
    args = parse_molt_command(molt_command({"flash.delta": 0.01, "flash.importance_correction": False})).args
    assert args.actor.loss_mode == "flash"
    assert args.algo.advantage.estimator == "flash_trajectory"
    assert (args.flash.delta, args.flash.importance_correction) == (0.01, False)
    assert args.algo.advantage.is_correction_threshold == [float("-inf"), 3e-3]


def test_what_molt_derives_and_prints_is_returned():
    command = parse_molt_command(molt_command({"rollout.vllm_generate_batch_size": 2048}))
    assert command.args.train.partial_rollout_enable is True
    assert any("enabling --train.partial_rollout_enable" in notice for notice in command.notices)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rollout.top_p 0.9", "Molt refuses the command: --rollout.top_p 0.9 biases"),
        ("--train.max_epochs 2", "requires --train.max_epochs 1"),
        ("--flash.gate sometimes", "Molt's parser: argument --flash.gate: invalid choice"),
        ("--flash.gat none", "Molt's parser: unrecognized arguments: --flash.gat none"),
        ("--actor.adam.lr fast", "Molt's parser: argument --actor.adam.lr: invalid float"),
    ],
)
def test_a_refusal_is_a_setting_error_in_molts_words(flags, words):
    with pytest.raises(SettingError, match="Molt") as error:
        parse_molt_command([*molt_command(), *flags.split()])
    assert words in str(error.value)


def test_help_shows_molts_flags_and_ours(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_molt_command(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--actor.loss_agg_mode" in shown
    assert "--flash.negative_token_fraction" in shown


def test_a_file_of_another_shape_is_not_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("def train(args): ...\ntrain(1)\n")
    with pytest.raises(UnsupportedMolt, match="does not end with a main block"):
        _block(path)


def test_reading_molts_command_line_loads_no_heavy_library():
    script = (
        "import sys; from flashreinforce_molt.molt.cli_block import parse_molt_command; "
        f"parse_molt_command({molt_command()!r}); "
        "print([name for name in ('torch', 'ray', 'vllm', 'transformers', 'molt.utils') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

"""Rules about the batch, the baselines and the data that fill it."""

from __future__ import annotations

import math

from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.config.locks import dataset_revision
from flashreinforce_molt.config.report import Derived, Report
from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show

_SUITE_KEYS = ("id", "split", "rows", "path", "revision")


def prompts_per_update(config: Config) -> int:
    """Prompts that fill one batch."""
    return max(1, config.train.batch_size // config.train.rollouts_per_prompt)


def training_rows(config: Config) -> int | None:
    """Training tasks of one pass; None when the recipe does not know."""
    rows, limit = config.data.rows, config.data.max_rows
    return rows if rows is None or limit is None else min(rows, limit)


def updates_per_pass(config: Config) -> int | None:
    """Updates of one pass over the data, the incomplete last batch included, as Molt counts them."""
    rows = training_rows(config)
    return None if rows is None else math.ceil(rows / prompts_per_update(config))


def auto_molt_updates(experiment: Experiment) -> Derived:
    """Molt counts passes over the data; the number of updates follows from them."""
    config, per_pass = experiment.config, updates_per_pass(experiment.config)
    if experiment.engine != "molt" or per_pass is None:
        return {}
    reason = f"data.passes={config.data.passes} of {per_pass} updates each, as Molt counts"
    return {"train.updates": (per_pass * config.data.passes, reason)}


def auto_molt_microbatch(experiment: Experiment) -> Derived:
    """Molt needs a number; the gradient is the same for any."""
    if experiment.engine != "molt":
        return {}
    return {"train.micro_batch_size": (1, "Molt needs a number; the gradient is the same for any")}


def validate_rollouts_per_prompt(experiment: Experiment) -> list[Check]:
    """The method takes one rollout per prompt; GRPO needs a group."""
    count, method, batch = "train.rollouts_per_prompt", "algorithm.name", "train.batch_size"
    report = Report("rollouts-per-prompt", experiment, count, method, batch)
    config = experiment.config
    several = config.train.rollouts_per_prompt
    if config.algorithm.name == "flashreinforce" and several != 1:
        report.add(
            "error",
            f"{report.say(count)}: the method compares a reward with its batch and samples each prompt once; "
            f"set {count}=1, or {method}=grpo for the baseline",
        )
    if config.algorithm.name == "grpo" and several == 1:
        report.add(
            "error",
            f"{report.say(method)} compares answers to one prompt, so {report.say(count)} leaves every "
            f"advantage 0; set {count} to 2 or more (published: 4 or 8), or {method}=flashreinforce",
        )
    if config.train.batch_size % several:
        lower = max(several, config.train.batch_size - config.train.batch_size % several)
        report.add(
            "error",
            f"{report.say(batch)} is no multiple of {report.say(count)}; use {lower} or {lower + several}",
        )
    return report.checks(
        "one rollout per prompt"
        if several == 1
        else f"{prompts_per_update(config)} prompts times {several} rollouts in each batch"
    )


def validate_epochs(experiment: Experiment) -> list[Check]:
    """A batch is trained on once and discarded."""
    name = "train.epochs_per_batch"
    report = Report("epochs", experiment, name)
    if experiment.config.train.epochs_per_batch != 1:
        report.add(
            "error",
            f"{report.say(name)}: the second epoch trains on data that the updated weights did not sample; set "
            f"{name}=1",
        )
    return report.checks("each batch is trained on once and discarded")


def _unused_by_grpo(experiment: Experiment) -> dict[str, str]:
    """Settings of the method that GRPO would ignore, with the value that ignores nothing."""
    settings, objective = experiment.settings, experiment.config.objective
    neutral = {
        "objective.negative_token_fraction": 1.0,
        "objective.ratio_gradient": "detached",
        "objective.log_ratio_limit": 30.0,
    }
    if not objective.importance_correction:
        neutral["objective.gate"] = "none"
    unused = {name: show(value) for name, value in neutral.items() if settings[name].value != value}
    if objective.aggregation == "constant-length":
        unused["objective.aggregation"] = "sample-mean or token-mean"
    if settings["objective.delta"].chosen and not (
        objective.importance_correction and objective.gate != "none"
    ):
        unused["objective.delta"] = "the recipe's"
    return unused


def validate_algorithm(experiment: Experiment) -> list[Check]:
    """Baselines run on Molt, and the method has neither KL nor entropy term."""
    method, kl, reference, entropy = (
        f"algorithm.{key}" for key in ("name", "kl_coefficient", "kl_reference", "entropy_coefficient")
    )
    clip = "algorithm.clip"
    report = Report("algorithm", experiment, method, kl, reference, entropy, clip, "molt.native")
    config, algorithm = experiment.config, experiment.config.algorithm
    if experiment.engine != "molt":
        for name, neutral in ((method, "flashreinforce"), (kl, 0), (entropy, 0)):
            if experiment.settings[name].value != neutral:
                report.add(
                    "error",
                    f"{report.say(name)} is not available on the engine {experiment.engine}; use {neutral}",
                )
        return report.checks("FlashREINFORCE")
    if algorithm.name == "grpo":
        report.add("warning", f"{report.say(method)} is a baseline to compare with, not the method")
        if config.molt.native:
            report.add(
                "error",
                f"{report.say(method)} is Molt's own, but {report.say('molt.native')} trains with our loss; set "
                "molt.native=false",
            )
        for name, neutral in _unused_by_grpo(experiment).items():
            report.add(
                "error",
                f"{report.say(name)} has no effect on GRPO, which trains with Molt's own loss; use {neutral}, or "
                f"{method}=flashreinforce",
            )
    elif experiment.settings[clip].chosen:
        report.add("warning", f"{report.say(clip)} has no effect: the method's only step has ratio 1")
    if algorithm.kl_coefficient > 0:
        if algorithm.kl_reference == "none":
            report.add(
                "error", f"{report.say(kl)} has no reference; set {kl}=0, as published, or {reference}=model"
            )
        elif algorithm.kl_reference == "rollout":
            report.add(
                "error",
                f"{report.say(reference)} passes Molt's checks and then fails at run time; use {reference}=model, "
                f"or {kl}=0 as published",
            )
        elif config.molt.native:
            report.add(
                "error", f"{report.say(kl)}: our loss has no KL term; set {kl}=0, or molt.native=false"
            )
        else:
            report.add(
                "warning", f"{report.say(kl)}: the method has no KL term; the reference takes GPUs of its own"
            )
    elif algorithm.kl_reference != "none":
        report.add("warning", f"{report.say(reference)} has no effect with {report.say(kl)}")
    if algorithm.entropy_coefficient > 0:
        report.add("warning", f"{report.say(entropy)}: the method has no entropy bonus")
    return report.checks("FlashREINFORCE without KL term or entropy bonus")


def validate_data(experiment: Experiment) -> list[Check]:
    """The training data fill whole batches, and somebody said where they are."""
    path, rows, updates = "data.path", "data.rows", "train.updates"
    report = Report(
        "data",
        experiment,
        *(path, rows, updates, "data.passes", "data.max_rows", "data.tools_key", "train.batch_size"),
    )
    config, per_pass = experiment.config, updates_per_pass(experiment.config)
    if experiment.engine != "molt":
        return []
    if config.data.path is None:
        lost = _lost(experiment, path)
        report.add(
            "error",
            f"{path} is missing{lost}; Molt reads its prompts from a file, such as data/dapo/train.parquet",
        )
    if config.environment.name == "python_tool" and config.data.tools_key is None:
        tools = report.say("data.tools_key")
        report.add(
            "warning", f"{tools}: the chat template will not show the Python tool to the model; use tools"
        )
    if per_pass is None:
        report.add(
            "warning",
            f"{rows} is missing{_lost(experiment, rows)}, so neither updates nor schedule can be foretold",
        )
        return report.checks("")
    prompts, available = prompts_per_update(config), training_rows(config) or 0
    if available < prompts:
        report.add("error", f"{available} training tasks do not fill one batch of {prompts} prompts")
    wanted = experiment.settings[updates]
    if wanted.written and wanted.value != per_pass * config.data.passes:
        fewer = f"data.passes=1 and data.max_rows={wanted.value * prompts}"
        passes = f"data.passes={math.ceil(wanted.value / per_pass)}"
        report.add(
            "error",
            f"{report.say(updates)}: Molt counts passes, here {per_pass} updates each; set "
            f"{fewer if wanted.value < per_pass else passes} instead",
        )
    tail = available % prompts
    last = f", the last of each with {tail} prompts" if tail else ""
    return report.checks(f"{config.data.passes} passes of {per_pass} updates{last}")


def _lost(experiment: Experiment, name: str) -> str:
    """Why a value of a lower layer does not count, if there was one."""
    setting = experiment.settings[name]
    return f" ({setting.source})" if setting.layer == "derived" else ""


def validate_pins(experiment: Experiment) -> list[Check]:
    """Every data set is pinned, or the review says that it is not."""
    data, suites = "data.id", "evaluation.suites"
    report = Report("data-pins", experiment, data, "data.revision", suites)
    config = experiment.config
    sources = [(data, config.data.id, config.data.revision)]
    sources += [
        (f"{suites}.{name}", suite.get("id"), suite.get("revision"))
        for name, suite in config.evaluation.suites.items()
        if isinstance(suite, dict)
    ]
    used = [source for source in sources if source[1]]
    loose = [f"{id} ({name})" for name, id, revision in used if dataset_revision(id, revision) is None]
    if loose:
        report.add(
            "warning",
            f"UNPINNED: {', '.join(loose)}; the first flashreinforce-molt prepare on a machine with access writes "
            "each revision into recipes/locks/datasets.json",
        )
    return report.checks("every data set is pinned") if used else []


def validate_evaluation(experiment: Experiment) -> list[Check]:
    """Suites are complete; evaluation alone may truncate its sampling."""
    suites = "evaluation.suites"
    report = Report("evaluation", experiment, suites, "evaluation.samples", "evaluation.every")
    evaluation = experiment.config.evaluation
    for name, suite in evaluation.suites.items():
        said = f"{suites}.{name} (from {experiment.settings[suites].layer})"
        if not isinstance(suite, dict):
            report.add("error", f"{said} must be a mapping with the keys {', '.join(_SUITE_KEYS)}")
            continue
        odd = [key for key in suite if key not in _SUITE_KEYS]
        if odd:
            report.add("error", f"{said} has the unknown key {odd[0]}; known: {', '.join(_SUITE_KEYS)}")
        if not isinstance(suite.get("path"), str) or not isinstance(suite.get("rows"), int):
            report.add("error", f"{said} needs path (a prepared file) and rows (a whole number)")
    if not evaluation.suites:
        return []
    listed = ", ".join(evaluation.suites)
    pace = f"every {evaluation.every} updates" if evaluation.every else "never after the start"
    return report.checks(
        f"{listed}: avg@{evaluation.samples} at temperature {evaluation.temperature:g}, top-p "
        f"{evaluation.top_p:g}, {pace}"
    )

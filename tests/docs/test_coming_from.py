"""The page for those who know TRL or verl: its names exist, and its two examples say the same on both sides."""

import ast
import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.config.other_libraries import OTHER_NAMES, explain_other_name
from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from r3env.envs.function import FunctionEnv
from r3env.envs.function_calls import make_judge

from .pages import DOCS, command_lines, fenced, inline_code, sections, text_of

PAGE = DOCS / "guides/coming-from-trl-or-verl.md"
SCRIPT, TRLS_REWARD, VERLS_REWARD = fenced(PAGE, "python")
FROM_TRL, FROM_VERL = fenced(PAGE, "yaml")
# Arguments of `GRPOTrainer`, and of other releases and trainers.
OF_THE_TRAINER = {"environment_factory", "eval_dataset", "peft_config", "reward_funcs", "tools", "train_dataset"}
OF_OTHERS = {"AsyncGRPOTrainer", "max_prompt_length", "max_staleness"}


def fields(package: str, file: str, name: str) -> set[str]:
    """The annotated fields of a class, read without importing its package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / file).read_text(encoding="utf-8"))
    (found,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    targets = (node.target for node in found.body if isinstance(node, ast.AnnAssign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def trls_configs() -> set[str]:
    own = fields("trl", "trainer/grpo_config.py", "GRPOConfig")
    return own | fields("transformers", "training_args.py", "TrainingArguments")


def trl_column() -> list[str]:
    """Names in the first column of the table of TRL's names, without values."""
    table = text_of(PAGE).partition("## TRL's names")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*?) \|", table, re.MULTILINE)
    return [code.partition("=")[0] for cell in cells for code in re.findall(r"`([A-Za-z_]\w*(?:=[^`]*)?)`", cell)]


def rows_of(heading: str) -> list[tuple[list[str], list[str]]]:
    """The names in the first two columns of a table, their values left out."""
    table = text_of(PAGE).partition(f"## {heading}'s names")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*?) \| ([^|]*?) \|", table, re.MULTILINE)
    return [
        tuple([re.split("[=:]", code)[0] for code in re.findall(r"`([^`]*)`", cell)] for cell in row) for row in cells
    ]


def example(tmp_path, monkeypatch, text, config_class=GRPOConfig):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(text, encoding="utf-8")
    return load("run.yaml", [], config_class)


def test_each_setting_of_trls_grpo_is_on_the_page():
    named = {code.partition("=")[0] for code in inline_code(PAGE)}
    assert fields("trl", "trainer/grpo_config.py", "GRPOConfig") <= named


@pytest.mark.parametrize("library", OTHER_NAMES)
def test_errors_and_the_tables_of_names_agree(library):
    rows = rows_of(library)
    assert len(rows) > 40
    for theirs, ours in OTHER_NAMES[library].items():
        assert any(theirs in left and ours in right for left, right in rows), f"{theirs}: {ours} is on no line"
    settings = {f"{section}.{key}" for section, model in sections().items() for key in model.model_fields}
    for left, right in rows:
        if len(left) == len(right) == 1 and right[0] in settings and left[0] != right[0].partition(".")[2]:
            assert OTHER_NAMES[library][left[0]] == right[0]


@pytest.mark.parametrize("library", OTHER_NAMES)
def test_each_name_of_the_tables_is_known_to_errors_unless_it_is_ours_too(library):
    # A value, a class, and what is an option of the command here.
    others = {'"sapo"', "AsyncGRPOTrainer", "resume_from_checkpoint", "trainer.resume_mode"}
    for left, right in rows_of(library):
        ours = {name.partition(".")[2] for name in right}
        assert all(explain_other_name(name) for name in set(left) - others - ours if right), left


def test_each_of_our_names_in_errors_is_a_setting():
    settings = {f"{section}.{key}" for section, model in sections().items() for key in model.model_fields}
    for names in OTHER_NAMES.values():
        assert all(".".join(ours.split(".")[:2]) in settings for ours in names.values())


@pytest.mark.parametrize(
    ("written", "theirs", "ours"),
    [
        ("training.epsilon_high", "epsilon_high is TRL's", "training.clip_high"),
        ("training.learning_rate", "learning_rate is TRL's", "training.lr"),
        ("num_generations", "num_generations is TRL's", "training.group_size"),
        ("run.lr_scheduler_type", "lr_scheduler_type is TRL's", "training.lr_schedule"),
        ("actor_rollout_ref.rollout.n", "rollout.n is verl's", "training.group_size"),
        ("training.ppo_epochs", "actor.ppo_epochs is verl's", "training.passes"),
        ("data.train_batch_size", "data.train_batch_size is verl's", "training.queries_per_step"),
        ("+trainer.logger", "trainer.logger is verl's", "run.trackers"),
    ],
)
def test_their_name_as_an_override_is_answered_with_ours(written, theirs, ours):
    with pytest.raises(ConfigError) as raised:
        load(None, [f"{written}=1"], GRPOConfig)
    what = "section" if not written.startswith(("training.", "run.")) else "setting"
    page = "docs/guides/coming-from-trl-or-verl.md"
    assert str(raised.value) == f"{written}: no such {what}; {theirs} name; fix: write {ours}, see {page}"


def test_their_name_in_a_file_is_answered_with_ours(tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^run\.yaml: training\.num_generations: .* fix: write training\.group_size,"
    ):
        example(tmp_path, monkeypatch, "training: {num_generations: 4}\n")
    with pytest.raises(ConfigError, match=r"^run\.yaml: learning_rate: .* fix: write training\.lr,"):
        example(tmp_path, monkeypatch, "learning_rate: 1.0e-6\n")


VERL_FILE = """
data: {train_files: gsm8k.parquet, train_batch_size: 64}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-0.6B}
  actor: {optim: {lr: 1e-6}, ppo_mini_batch_size: 64}
  rollout: {n: 8, multi_turn: {max_assistant_turns: 2}}
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            VERL_FILE,
            "run.yaml: data, actor_rollout_ref: no such section; its settings are verl's; fix: write environment.data "
            "for data.train_files, training.queries_per_step for data.train_batch_size, rl_module.model for "
            "model.path, training.lr for actor.optim.lr and 3 more, see docs/guides/coming-from-trl-or-verl.md",
        ),
        (
            "algorithm: {adv_estimator: grpo}",
            "run.yaml: algorithm: no such section; its settings are verl's; fix: write training.advantage for "
            "algorithm.adv_estimator, see",
        ),
        (
            "reward: {custom_reward_function: {path: rewards.py}}",
            "run.yaml: reward.custom_reward_function: no such setting; its settings are verl's; fix: write "
            "environment.options.reward for reward.custom_reward_function.path, see",
        ),
        (
            "critic: {cliprange_value: 0.5}",
            "run.yaml: critic: no such section; it is verl's; fix: look its settings up",
        ),
        ("trl: {num_generations: 8}", "run.yaml: trl: no such section; its settings are TRL's; fix: write training.gr"),
        ("trainin: {lr: 1e-6}", "run.yaml: trainin: no such section; did you mean training?"),
        ("hints: {deep: {er: 1}}", "run.yaml: hints: no such section; "),
    ],
)
def test_their_sections_in_a_file_are_answered_with_our_settings(tmp_path, monkeypatch, text, line):
    with pytest.raises(ConfigError) as raised:
        example(tmp_path, monkeypatch, text)
    assert str(raised.value).startswith(line)


def test_a_part_of_one_word_and_a_typo_are_no_names_of_theirs():
    for name in ("training.n", "training.path", "trainin.lr", "reflection.enable", "training.lerning_rate"):
        assert explain_other_name(name) is None


def test_each_name_in_trls_column_is_trls():
    assert set(trl_column()) <= trls_configs() | OF_THE_TRAINER | OF_OTHERS


def test_the_script_for_trl_and_its_configuration_are_the_same_run(tmp_path, monkeypatch):
    calls = (node for node in ast.walk(ast.parse(SCRIPT)) if isinstance(node, ast.Call))
    (call,) = [call for call in calls if ast.unparse(call.func) == "GRPOConfig"]
    trl = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert trl.keys() <= trls_configs()
    config, run = example(tmp_path, monkeypatch, FROM_TRL)
    training = config.training_settings
    responses = trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"]
    assert training.queries_per_step * training.group_size == responses and training.minibatches == 1
    assert training.group_size == trl["num_generations"] and run.steps == trl["max_steps"]
    assert run.checkpoint_every == trl["save_steps"] and run.trackers == [trl["report_to"]]
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    assert runners.max_response_tokens == trl["max_completion_length"]
    assert runners.gpu_memory_utilization == trl["vllm_gpu_memory_utilization"]
    assert evaluation.interval == trl["eval_steps"] and evaluation.samples == trl["num_generations"]


def test_the_command_of_verl_and_its_configuration_are_the_same_run(tmp_path, monkeypatch):
    (command,) = [block for block in fenced(PAGE, "sh") if "verl.trainer" in block]
    given = dict(word.removeprefix("actor_rollout_ref.").split("=", 1) for word in shlex.split(command) if "=" in word)
    config, run = example(tmp_path, monkeypatch, FROM_VERL)
    training, runners = config.training_settings, config.env_runners_settings
    assert training.queries_per_step == int(given["data.train_batch_size"])
    assert training.queries_per_step // training.minibatches == int(given["actor.ppo_mini_batch_size"])
    assert training.group_size == int(given["rollout.n"]) and training.lr == float(given["actor.optim.lr"])
    assert training.beta == float(given["actor.kl_loss_coef"])
    assert runners.max_response_tokens == int(given["data.max_response_length"])
    assert runners.gpu_memory_utilization == float(given["rollout.gpu_memory_utilization"])
    assert runners.num_env_runners == config.num_learners == int(given["trainer.n_gpus_per_node"])
    assert config.learners_settings.token_budget == int(given["actor.ppo_max_token_len_per_gpu"])
    assert config.environment_settings.options["max_prompt_length"] == int(given["data.max_prompt_length"])
    assert config.rl_module_settings.model == given["model.path"]
    assert run.steps == int(given["trainer.total_training_steps"])
    assert run.checkpoint_every == int(given["trainer.save_freq"])
    assert config.evaluation_settings.interval == int(given["trainer.test_freq"])


def test_r3_takes_the_same_files(tmp_path, monkeypatch):
    for text in (FROM_TRL, FROM_VERL):
        config, _ = example(tmp_path, monkeypatch, text, R3GRPOConfig)
        assert config.replay_settings.enabled


def test_the_commands_name_the_files_of_the_page():
    named = {after for words in command_lines(PAGE) for word, after in pairwise(words) if word == "--config"}
    assert named == {text.partition("\n")[0].removeprefix("# ") for text in (FROM_TRL, FROM_VERL)}


def test_both_reward_functions_judge(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "from_trl_rewards.py").write_text(TRLS_REWARD, encoding="utf-8")
    (tmp_path / "from_verl_rewards.py").write_text(VERLS_REWARD, encoding="utf-8")
    (tmp_path / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(solution_str.endswith(ground_truth) and data_source == 'sums')}\n",
        encoding="utf-8",
    )
    row = {"problem": "3+4", "answer": "7", "uid": "a", "level": "", "data_source": "sums"}
    for name in ("from_trl_rewards:exact", "from_verl_rewards:reward"):
        judge = make_judge((name,), (1.0,), 1.0, None)
        assert judge(row | {"response": "it is 7"}, "3+4")["score"] == 1.0
        assert judge(row | {"response": "it is 8"}, "3+4")["score"] == 0.0


def test_the_data_of_verl_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("verl_rewards.py").write_text(VERLS_REWARD, encoding="utf-8")
    Path("my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    known = data_source == 'sums' and extra_info['index'] == 3\n"
        "    return float(known and solution_str.endswith(ground_truth))\n",
        encoding="utf-8",
    )
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": "What is 3+4?"}]
    truth = {"style": "rule", "ground_truth": "7"}
    row = {"prompt": prompt, "reward_model": truth, "data_source": "sums", "extra_info": {"index": 3}}
    pq.write_table(pa.Table.from_pylist([row]), "train.parquet")
    env = FunctionEnv("train.parquet", reward=f"{tmp_path}/verl_rewards.py:reward", grading_timeout_s=60.0)
    text, info = env.reset(seed=0)
    assert (text, info["conversation"]) == ("What is 3+4?", (prompt[0],))
    assert env.step("it is 7")[1] == 1.0

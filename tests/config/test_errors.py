"""A mistake is one line that names the setting, the value, the rule and the nearest right spelling."""

import pytest

from algorithms.config.loading import load
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig

WRONG = [
    ("training", {"lr": -1}, "training.lr: -1 is not a number >= 0; the default is 1e-06"),
    ("training", {"lr": "abc"}, "training.lr: 'abc' is not a number >= 0; the default is 1e-06"),
    ("training", {"lr": float("nan")}, "training.lr: nan is not a number >= 0; the default is 1e-06"),
    (
        "training",
        {"lr": [[0, 1e-3]]},
        "training.lr: [[0, 0.001]] is not a number; fix: training.lr_schedule and warmup_steps",
    ),
    ("training", {"group_size": 1}, "training.group_size: 1 is not a whole number >= 2; the default is 8"),
    (
        "training",
        {"group_size": 8.0},
        "training.group_size: 8.0 is not a whole number >= 2; the default is 8",
    ),
    (
        "training",
        {"group_size": "8"},
        "training.group_size: '8' is not a whole number >= 2; the default is 8",
    ),
    (
        "training",
        {"group_size": True},
        "training.group_size: true is not a whole number >= 2; the default is 8",
    ),
    (
        "training",
        {"group_size": None},
        "training.group_size: null is not a whole number >= 2; the default is 8",
    ),
    (
        "training",
        {"clip_low": 1.5},
        "training.clip_low: 1.5 is not a number >= 0 and <= 1; the default is 0.2",
    ),
    (
        "training",
        {"loss_aggregation": "tokens"},
        "training.loss_aggregation: 'tokens' is not one of token, response, constant; did you mean token?",
    ),
    (
        "env_runners",
        {"engine": "VLLM"},
        "env_runners.engine: 'VLLM' is not one of transformers, vllm; did you mean vllm?",
    ),
    (
        "environment",
        {"data": 123},
        'environment.data: 123 is not text that is not empty, or null; fix: quote it, "123"',
    ),
    (
        "environment",
        {"columns": {"problem": 1}},
        "environment.columns: {'problem': 1} is not a mapping from text to text; the default is {}",
    ),
    (
        "evaluation",
        {"k": [1, 0]},
        "evaluation.k: [1, 0] is not a list that is not empty, each a whole number >= 1; the default is [1, 8]",
    ),
    ("replay", {"enabled": 1}, "replay.enabled: 1 is not true or false; the default is true"),
    (
        "ranking",
        {"max_reward": 1.0},
        "ranking.max_reward: 1.0 is not a number >= 0 and < 1; the default is 0.1",
    ),
    (
        "training",
        {"mechanisms": "gdro"},
        "training.mechanisms: 'gdro' is not a list, each text that is not empty; fix: training.mechanisms=[gdro]",
    ),
    ("training", {"lrr": 1}, "training.lrr: no such setting; did you mean training.lr?"),
    (
        "training",
        {"Group_Size": 1},
        "training.Group_Size: no such setting; did you mean training.group_size?",
    ),
    ("training", {"capacity": 1}, "training.capacity: no such setting; did you mean history.capacity?"),
    (
        "reward",
        {"zz": 1},
        "reward.zz: no such setting; known: length_bonus, length_bonus_max_tokens, length_bonus_std_floor, "
        "overlong_penalty, overlong_share",
    ),
]
CONTRADICTIONS = [
    (
        {"training": {"minibatches": 3}},
        "training.minibatches: 3 does not divide the 128 responses of a step (training.queries_per_step × "
        "group_size); fix: training.minibatches=2",
    ),
    (
        {"evaluation": {"samples": 4}},
        "evaluation.k: 8 is more than evaluation.samples, 4; fix: evaluation.samples=8, or evaluation.k=[1]",
    ),
    (
        {"evaluation": {"temperature": 0.0, "samples": 1}},
        "evaluation.temperature: 0 decodes greedily, and all responses to a problem are the same; fix: "
        "evaluation.samples=1 and evaluation.k=[1]",
    ),
    (
        {"training": {"lr_min_share": 0.1}},
        "training.lr_min_share: 0.1 has no effect with training.lr_schedule=constant; fix: training.lr_schedule=cosine",
    ),
    (
        {"training": {"lr_decay_steps": 50}},
        "training.lr_decay_steps: 50 has no effect with training.lr_schedule=constant; "
        "fix: training.lr_schedule=cosine",
    ),
    (
        {"training": {"lr_schedule": "linear"}},
        "training.lr_schedule: linear needs the number of training steps, which only the command knows from run.steps; "
        "fix: training.lr_decay_steps=100, or how many there will be",
    ),
    (
        {"training": {"lr_schedule": "cosine", "lr_decay_steps": 50, "warmup_steps": 100}},
        "training.lr_decay_steps: 50 training steps are over before the 100 optimizer steps of training.warmup_steps, "
        "and the rest would have the rate of the schedule's end; fix: a larger training.lr_decay_steps",
    ),
    (
        {"training": {"importance_cap": 0.5}},
        "training.importance_cap: 0.5 lowers the weight of responses that engine and trainer agree on; "
        "fix: training.importance_cap=2",
    ),
    (
        {"environment": {"data": "a/../b.jsonl"}, "evaluation": {"data": "b.jsonl"}},
        "evaluation.data: 'b.jsonl' is environment.data too; fix: name held-out problems",
    ),
    (
        {"ranking": {"scope": "all"}},
        "ranking.baseline: 'finished_wrong' compares with unranked responses, and ranking.scope=all ranks them all; "
        "fix: ranking.scope=truncated or ranking.baseline=centered",
    ),
]


@pytest.mark.parametrize(("section", "settings", "line"), WRONG)
def test_the_line_of_a_wrong_value_or_key(section, settings, line):
    with pytest.raises(ConfigError) as raised:
        R3GRPOConfig().apply({section: settings})
    assert str(raised.value) == line
    assert raised.value.__cause__ is None
    with pytest.raises(ConfigError):
        getattr(R3GRPOConfig(), section)(**settings)


@pytest.mark.parametrize(("sections", "line"), CONTRADICTIONS)
def test_the_line_of_a_contradiction(sections, line):
    config = R3GRPOConfig().apply(sections)
    with pytest.raises(ConfigError) as raised:
        config.check_settings()
    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("evaluation.k=4", "4 is not a list that is not empty, each a whole number >= 1; fix: evaluation.k=[4]"),
        (
            "evaluation.stop=END",
            "'END' is not a list, each text that is not empty, or null; fix: evaluation.stop=[END]",
        ),
        ("run.trackers=wandb", "'wandb' is not a list, each text that is not empty; fix: run.trackers=[wandb]"),
        (
            "run.start_with=optimizer",
            "'optimizer' is not a list, each one of optimizer, history, queries; fix: run.start_with=[optimizer]",
        ),
        ("run.start_with=[historie]", "'historie' is not one of optimizer, history, queries; did you mean history?"),
    ],
)
def test_a_list_is_answered_with_what_it_takes(setting, line):
    with pytest.raises(ConfigError) as raised:
        load(None, [setting], GRPOConfig)
    assert str(raised.value) == f"{setting.partition('=')[0]}: {line}"


def test_a_greedy_evaluation_and_a_schedule_of_known_length_are_allowed():
    GRPOConfig().evaluation(temperature=0.0, samples=1, k=[1]).check_settings()
    GRPOConfig().training(lr_schedule="cosine", lr_decay_steps=50, lr_min_share=0.1).check_settings()
    config, _ = load(None, ["training.lr_schedule=linear", "run.steps=7"], GRPOConfig)
    assert config.schedule_steps == config.copy().schedule_steps == 7


def test_a_wrong_value_leaves_the_configuration_as_it_was():
    config = GRPOConfig()
    with pytest.raises(ConfigError):
        config.training(group_size=4, lr=-1)
    assert config.to_sections() == GRPOConfig().to_sections()


def test_the_line_of_an_unknown_section():
    with pytest.raises(ConfigError, match=r"^trainin: no such section; did you mean training\?$"):
        GRPOConfig().apply({"trainin": {"lr": 1}})
    with pytest.raises(ConfigError, match="^training: 3 is not a mapping; fix: write training: {key: value}$"):
        GRPOConfig().apply({"training": 3})


def test_grpo_has_none_of_the_mechanisms():
    with pytest.raises(ConfigError, match="^replay: no such section; "):
        GRPOConfig().apply({"replay": {"k": 1}})


def test_the_default_combination_of_ranking_is_allowed_and_the_papers_too():
    R3GRPOConfig().check_settings()
    R3GRPOConfig().ranking(baseline="paper", scope="all", order="entropy").check_settings()


def test_a_long_value_is_shortened():
    with pytest.raises(ConfigError) as raised:
        GRPOConfig().training(lr="x" * 10_000)
    assert len(str(raised.value)) < 200


def test_an_assigned_attribute_is_checked_too():
    config = GRPOConfig()
    with pytest.raises(ConfigError, match=r"^training\.lr: -1 "):
        config.lr = -1
    with pytest.raises(ConfigError, match="^training_settings: 3 is not of type TrainingSettings"):
        config["training_settings"] = 3

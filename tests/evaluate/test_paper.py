"""configs/eval_paper.yaml asks the paper's five benchmarks with its settings."""

import pytest
import yaml

from algorithms.config.loading import load
from algorithms.evaluation.results import bearing_on_answers
from algorithms.train.evaluated_run import EvaluateConfig
from r3env.data.sources import parse_source


def test_the_paper_s_benchmarks_and_settings():
    config, _ = load("configs/eval_paper.yaml", [], EvaluateConfig)
    data = config.benchmarks_settings.data
    assert list(data) == ["aime24", "math500", "amc23", "minerva", "olympiad"]
    assert all(parse_source(source).kind == "hub" for source in data.values()), "presets that are known"
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    assert (evaluation.samples, evaluation.k, evaluation.limit) == (16, [1, 16], None)
    assert (evaluation.temperature, evaluation.top_p, runners.max_response_tokens) == (0.6, 0.95, 32768)
    assert (runners.engine, runners.dtype, config.rl_module_settings.dtype) == ("vllm", "bfloat16", "bfloat16")


OF_A_RUN = {
    "algorithm": "r3_grpo",
    "run": {"seed": 7, "name": "mine", "steps": 3},
    "environment": {
        "id": "r3env/Mixture-v0",
        "data": "mine.jsonl",
        "columns": {"answer": "solution"},
        "instruction": "Answer in French.",
        "reflection_guidance": "No.",
        "max_turns": 2,
        "grading_timeout_s": 1.0,
        "options": {"environments": {"a": {"id": "r3env/Math-v0"}}, "limit": 3},
    },
    "rl_module": {"dtype": "float32"},
    "env_runners": {
        "engine": "transformers",
        "dtype": "float32",
        "max_response_tokens": 64,
        "max_num_seqs": 3,
        "num_env_runners": 2,
        "timeout_s": 9.0,
        "temperature": 0.3,
    },
    "training": {"lr": 1e-3},
    "evaluation": {
        "data": "held_out.jsonl",
        "columns": {"problem": "question"},
        "interval": 5,
        "samples": 3,
        "k": [3],
        "limit": 2,
        "reflection": True,
        "temperature": 1.0,
        "top_p": 1.0,
    },
}


EVALUATIONS = [f"configs/eval_{name}.yaml" for name in ("paper", "choice", "ifeval", "ifbench", "gsm8k")]


@pytest.mark.parametrize("file", EVALUATIONS)
def test_what_a_run_was_trained_with_does_not_change_what_is_asked(file, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(OF_A_RUN))
    asked = []
    for files in ([file], [tmp_path / "config.yaml", file]):
        config, run = load(files, [], EvaluateConfig)
        asked.append({"run": run.model_dump(), **config.to_sections()})
    assert bearing_on_answers(*asked) == {}

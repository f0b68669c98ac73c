"""configs/eval_paper.yaml asks the paper's five benchmarks with its settings."""

from algorithms.configuration.files import load
from algorithms.evaluate.config import EvaluateConfig
from r3env.sources import parse_source


def test_the_paper_s_benchmarks_and_settings():
    config, _ = load("configs/eval_paper.yaml", [], EvaluateConfig)
    data = config.benchmarks_settings.data
    assert list(data) == ["aime24", "math500", "amc23", "minerva", "olympiad"]
    assert all(parse_source(source).kind == "hub" for source in data.values()), "presets that are known"
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    assert (evaluation.samples, evaluation.k, evaluation.limit) == (16, [1, 16], None)
    assert (evaluation.temperature, evaluation.top_p, runners.max_response_tokens) == (0.6, 0.95, 32768)
    assert (runners.engine, runners.dtype, config.rl_module_settings.dtype) == ("vllm", "bfloat16", "bfloat16")

"""What an evaluation refuses before an engine starts, and what it does not."""

import errno

import gymnasium
import pytest

from algorithms.config.errors import ConfigError
from algorithms.evaluate import main, parser, run
from algorithms.evaluation.benchmarks import _which_problems
from algorithms.evaluation.problems import make_environment
from algorithms.evaluation.responses import ResponseFolder
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.context_window import context_use
from algorithms.preflight.environments import EnvironmentFacts, longest_first, user_prompts
from algorithms.preflight.ray_session import RayDidNotStart
from algorithms.preflight.resources import validate_resources
from algorithms.rollout.workers import inference_workers
from algorithms.train.evaluated_run import resolve_config
from r3env import chat
from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.core import Query, Reason, Verdict, VerifiableEnv

TINY = ["--model", "embedded:tiny", "--samples", "2", "env_runners.max_response_tokens=4"]
HELDOUT = [*TINY, "--data", "math=embedded:heldout", "evaluation.limit=2"]


def configured(*arguments):
    return resolve_config(parser().parse_intermixed_args([*TINY, "--data", "math=embedded:heldout", *arguments]))[0]


def last_line(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def test_what_a_training_configuration_says_of_learners_refuses_no_evaluation():
    config = configured("--config", "configs/deepscaler_r1_1p5b_shared.yaml", "env_runners.num_env_runners=1")
    assert config.learners_settings.num_learners == config.learners_settings.num_gpus_per_learner == 0
    assert config.env_runners_settings.num_gpus_per_env_runner == 0.51
    assert not config.env_runners_settings.sleep_while_training


def test_a_model_that_is_named_does_not_start_from_what_a_training_configuration_names(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("run: {start_from: runs/first, start_with: [optimizer]}\n")
    assert configured("--config", str(file)).rl_module_settings.model == "embedded:tiny"


def test_an_adapter_that_a_training_configuration_asks_for_needs_no_packages_here(tmp_path, monkeypatch):
    monkeypatch.setattr("algorithms.preflight.resources._is_installed", lambda package: package == "vllm")
    file = tmp_path / "my.yaml"
    file.write_text("rl_module: {lora_rank: 4, lora_base: nf4, lora_targets: [q_proj]}\n")
    config = configured("--config", str(file))
    validate_resources(config)
    assert not config.rl_module_settings.lora_rank


def test_the_gpu_of_a_learner_in_the_driver_is_the_engines():
    config = configured("--config", "configs/deepscaler_r1_1p5b_1gpu.yaml")
    assert config.env_runners_settings.num_gpus_per_env_runner == 1
    assert config.learners_settings.num_gpus_per_learner == 0


def test_ifeval_without_its_data_is_refused_before_an_engine_starts(tmp_path, monkeypatch, capsys):
    pytest.importorskip("if_verifiable")
    judge = SubprocessScorer(size=1)  # has imported nothing yet, and no other test gets it
    monkeypatch.setattr("r3env.envs.function.shared_judge", lambda: judge)
    monkeypatch.setattr("algorithms.evaluation.benchmarks.inference_workers", EngineStarts)
    reward = tmp_path / "without_data.py"
    reward.write_text("import nltk\nnltk.data.path[:] = []\nfrom r3env.envs.instructions import ifeval\n")
    options = f"environment.options={{reward: '{reward}:ifeval', preset: ifeval}}"
    data = ["--data", "ifeval=tests/r3env/samples/ifeval.jsonl"]
    assert main(["--config", "configs/eval_ifeval.yaml", "--model", "embedded:tiny", *data, options]) == 2
    line = last_line(capsys)
    assert line.startswith("error: benchmarks.data: environments.ifeval: r3env/Function-v0 cannot be made: reward: ")
    assert "fix: python -m nltk.downloader punkt_tab" in line
    judge.close()


class EngineStarts(Exception):
    """Raised in an engine's place, with the GPUs that it was given."""


@pytest.mark.parametrize(("there", "gpus"), [(True, 1), (False, 0)])
def test_an_engine_in_this_process_takes_the_gpu_that_there_is(there, gpus, monkeypatch):
    def engine(config, worker_index):
        raise EngineStarts(config.env_runners_settings.num_gpus_per_env_runner)

    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("algorithms.rollout.workers.LLMEnvRunner", engine)
    config = configured()
    with pytest.raises(EngineStarts) as started, inference_workers(config):
        pass
    assert started.value.args == (gpus,)
    assert config.env_runners_settings.num_gpus_per_env_runner == 0, "what is written down is what was configured"


def test_answers_that_the_models_context_would_cut_are_refused(tmp_path, capsys):
    assert main([*HELDOUT, "env_runners.max_response_tokens=1024", "--out", str(tmp_path / "out")]) == 2
    said = last_line(capsys)
    assert "env_runners.max_response_tokens: 1024 and prompts of up to" in said and "1024 tokens of" in said
    assert not (tmp_path / "out").exists()


def test_gpus_that_are_not_there_are_refused_before_anything_waits_for_them(tmp_path, capsys):
    wanted = ["env_runners.num_env_runners=1", "env_runners.num_gpus_per_env_runner=64"]
    assert main([*HELDOUT, *wanted, "--out", str(tmp_path / "out")]) == 2
    assert "need 64 GPUs" in last_line(capsys)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["benchmarks.limits=[0]"], "benchmarks.limits"),
        (["benchmarks.limits=[2,5]"], "benchmarks.limits: 5 is more than env_runners.max_response_tokens, 4"),
        (["benchmarks.limits=[2]", "environment.max_turns=2"], "a limit applies to one turn"),
    ],
)
def test_limits_that_the_answers_say_nothing_of_are_refused(settings, said, tmp_path, capsys):
    assert main([*HELDOUT, *settings, "--out", str(tmp_path / "out")]) == 2
    assert said in last_line(capsys)


@pytest.mark.parametrize("asked", [[*HELDOUT, "environment.max_turns=2"], [*TINY, "environment.id=r3env/Mixture-v0"]])
def test_second_tries_are_of_answers_of_one_turn(asked, tmp_path, capsys):
    assert main([*asked, "--reflection", "--out", str(tmp_path / "out")]) == 2
    said = last_line(capsys)
    assert "evaluation.reflection: true with episodes of up to 2 turns" in said
    assert "fix: environment.max_turns=1 or" in said


def test_a_second_answer_that_has_no_room_whatever_is_quoted_is_refused(tmp_path, capsys):
    """A first answer of this length fits: without second tries it is asked."""
    config = configured()
    environment = make_environment(config)
    use = context_use(config, EnvironmentFacts(None, 1, longest_first(user_prompts(environment, environment.uids))))
    most = 1024 - use.prompt
    wanted = ["--data", "math=embedded:heldout", "--reflection", f"env_runners.max_response_tokens={most}"]
    assert main(["--model", "embedded:tiny", "--samples", "2", *wanted, "--out", str(tmp_path / "out")]) == 2
    said = last_line(capsys)
    assert f"env_runners.max_response_tokens: {most}, the turn that asks for a second attempt" in said
    fix = int(said.rpartition("=")[2])
    second = len(chat.next_turn(load_tokenizer(resolve_model("embedded:tiny")), [], environment.reflection_guidance))
    assert use.prompt + second + fix == 1024


class Doubling(VerifiableEnv):
    """Has its problems itself: its constructor takes no `data`."""

    def load_queries(self):
        return [Query(str(n), f"2 * {n} = ?", str(2 * n)) for n in range(1, 5)]

    def verify(self, query, response):
        return Verdict(query.answer in response, Reason.EQUAL if query.answer in response else Reason.DIFFERENT)


class Broken(Doubling):
    """Fails in every episode."""

    def verify(self, query, response):
        raise RuntimeError("no judge today")


@pytest.fixture
def own_environments():
    for kind in (Doubling, Broken):
        gymnasium.register(f"{kind.__name__}-v0", kind)
    yield
    for kind in (Doubling, Broken):
        del gymnasium.registry[f"{kind.__name__}-v0"]


def test_an_environment_with_problems_of_its_own_is_a_benchmark(own_environments, tmp_path):
    out = tmp_path / "out"
    assert main([*TINY, "environment.id=Doubling-v0", "--out", str(out)]) == 0
    responses = ResponseFolder(out / "responses").read()
    assert {one.benchmark for one in responses} == {"Doubling-v0"} and len(responses) == 8


def test_where_every_episode_fails_nothing_is_told_and_nothing_counts_as_asked(own_environments, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*TINY, "environment.id=Broken-v0", "--out", str(out)]) == 1
    assert "every one of 8 episodes failed" in (said := last_line(capsys)) and "no judge today" in said
    assert not (out / "scores.json").exists() and not list(out.glob("responses/*"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RayDidNotStart("Ray did not start"), "error: Ray did not start"),
        (OSError(errno.ENOSPC, "No space left on device"), "fix: make room, then repeat the same command"),
    ],
)
def test_faults_are_one_line_as_in_training(error, said, tmp_path, capsys, monkeypatch):
    def fails(config, start_ray):
        raise error

    monkeypatch.setattr("algorithms.evaluation.benchmarks.inference_workers", fails)
    assert main([*HELDOUT, "--out", str(tmp_path / "out")]) == 1
    assert said in last_line(capsys)


def test_an_unforeseen_error_keeps_its_traceback(tmp_path, monkeypatch):
    def fails(config, start_ray):
        raise KeyError("a defect")

    monkeypatch.setattr("algorithms.evaluation.benchmarks.inference_workers", fails)
    with pytest.raises(KeyError):
        main([*HELDOUT, "--out", str(tmp_path / "out")])


def test_without_problems_the_fix_is_data():
    with pytest.raises(ConfigError, match="benchmarks.data: no problems are named"):
        run(parser().parse_intermixed_args(TINY))


def test_a_mistyped_run_is_told_from_a_model_of_the_hub(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text("run: {name: first}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--model", "runs/firstt"]) == 2
    assert last_line(capsys) == "error: --model: there is no runs/firstt; fix: a run of runs, the nearest is 'first'"


@pytest.mark.parametrize(
    ("count", "total", "limit", "said"),
    [
        (500, 500, 500, "500 problems"),
        (200, 500, 200, "200 of 500 problems (evaluation.limit=200)"),
        (20, 500, None, "20 of 500 problems"),
    ],
)
def test_a_part_of_a_benchmark_is_said_to_be_one(count, total, limit, said):
    assert _which_problems(count, total, limit) == said

"""An environment is made and its problems are read before anything starts."""

import functools
import socket
import sys

import pytest
from ray.tune.registry import ENV_CREATOR, _global_registry, register_env

from algorithms.config.errors import ServiceError
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.preflight.environments import is_on_hub, validate_environment
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from examples.rewards import short
from r3env.core import Query, Verdict, VerifiableEnv


def test_queries_of_both_data_files_are_counted(problems):
    held_out = problems.with_name("held_out.jsonl")
    held_out.write_text('{"problem": "9+9", "answer": "18"}\n')
    config = GRPOConfig().environment(data=str(problems)).evaluation(data=str(held_out))
    facts = validate_environment(config)
    assert (facts.queries, facts.held_out) == (3, 1)
    assert facts.prompts[0].startswith("30+30")
    assert facts.guidance


def test_without_held_out_problems_evaluation_takes_the_training_ones(problems):
    facts = validate_environment(GRPOConfig().environment(data=str(problems)))
    assert facts.held_out == facts.queries == 3


def test_an_environment_of_ones_own_needs_no_constructor_arguments(own_environment):
    assert validate_environment(GRPOConfig().environment(f"{own_environment}:Echo-v0")).queries == 2


WRONG_IDS = [
    ("r3env/Math-v9", "environment.id: 'r3env/Math-v9' is not registered; did you mean r3env/Math-v0?"),
    ("r3env/Maths-v0", "environment.id: 'r3env/Maths-v0' is not registered; did you mean r3env/Math-v0?"),
    ("own_env:Ecko-v0", "environment.id: 'own_env:Ecko-v0' is not registered; did you mean own_env:Echo-v0?"),
    ("own_env:", "environment.id: 'own_env:' is not registered; "),
    (":Echo-v0", "environment.id: ':Echo-v0': importing "),
    ("not an id", "environment.id: 'not an id' is not registered; known: "),
    (
        "own_emv:Echo-v0",
        "environment.id: 'own_emv:Echo-v0': there is no module own_emv; fix: start from the folder that holds it, or "
        "put that folder on PYTHONPATH",
    ),
    ("broken_env:E-v0", "environment.id: 'broken_env:E-v0': importing broken_env fails: OSError: no"),
    (
        "CartPole-v1",
        "environment.id: 'CartPole-v1' is not a r3env.core.VerifiableEnv but a CartPoleEnv; fix: subclass it",
    ),
]


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(("name", "line"), WRONG_IDS)
def test_the_line_of_a_wrong_id(name, line):
    with pytest.raises(ConfigError) as raised:
        validate_environment(GRPOConfig().environment(name))
    assert str(raised.value).startswith(line)


def test_an_argument_that_the_environment_does_not_take_is_named(own_environment):
    config = GRPOConfig().environment(f"{own_environment}:Echo-v0", max_turns=2)
    with pytest.raises(
        ConfigError, match=r"^environment\.max_turns: .* takes no argument max_turns; fix: leave it out$"
    ):
        validate_environment(config)
    config = GRPOConfig().environment(f"{own_environment}:Echo-v0", options={"zoom": 3})
    with pytest.raises(
        ConfigError, match=r"^environment\.options\.zoom: .* takes no argument zoom; fix: leave it out$"
    ):
        validate_environment(config)


def test_wrong_data_names_its_section(problems):
    wrong = str(problems.with_name("problem.jsonl"))
    with pytest.raises(ConfigError, match=r"^environment\.data: .*problem\.jsonl.*problems\.jsonl"):
        validate_environment(GRPOConfig().environment(data=wrong))
    with pytest.raises(ConfigError, match=r"^evaluation\.data: .*problem\.jsonl.*problems\.jsonl"):
        validate_environment(GRPOConfig().environment(data=str(problems)).evaluation(data=wrong))


def test_a_wrong_column_is_an_error(problems):
    config = GRPOConfig().environment(data=str(problems), columns={"problem": "question"})
    with pytest.raises(ConfigError, match=r"^environment\.data: .*'question'"):
        validate_environment(config)


def test_data_on_the_hub_is_fetched_only_when_asked():
    facts = validate_environment(GRPOConfig().environment(data="o/data").evaluation(data="o/other"), fetch=False)
    assert (facts.queries, facts.held_out, facts.prompts) == (None, None, ())


def test_what_counts_as_data_on_the_hub(problems):
    assert is_on_hub("owner/name")
    assert is_on_hub("preset:gsm8k")
    others = (None, "embedded:train", "no/such.jsonl", str(problems.parent), "train", "leg_counting#size=4")
    assert not any(is_on_hub(data) for data in others)


def test_a_prompt_that_is_no_text_is_named(own_environment, monkeypatch):
    config = GRPOConfig().environment(f"{own_environment}:Echo-v0")
    validate_environment(config)
    monkeypatch.setattr(sys.modules[own_environment].Echo, "prompt", lambda self, query: 3)
    with pytest.raises(ConfigError, match=r"^environment\.id: .*must be text, it is of type int$"):
        validate_environment(config)


UNREACHABLE = """
import gymnasium
from r3env.core import Query, QueryList, VerifiableEnv

class Down(VerifiableEnv):
    def __init__(self, when="made", **arguments):
        super().__init__(**arguments)
        self.when = when
        if when == "made":
            self.fail()
        if when == "wrong":
            raise ValueError("no such table")

    def fail(self):
        try:
            raise ConnectionRefusedError("nobody is there")
        except OSError as error:
            raise RuntimeError("the data base") from error

    def load_queries(self):
        if self.when == "read":
            self.fail()
        return QueryList([Query("a", "1+1", "2")])

    def verify(self, query, response):
        raise AssertionError("nothing is judged")

    def prompt(self, query):
        if self.when == "prompt":
            self.fail()
        return "1+1"

    def check_concurrency(self, episodes):
        self.fail()

gymnasium.register(id="Down-v0", entry_point=lambda **arguments: Down(**arguments))
"""


@pytest.mark.parametrize("when", ["made", "read", "prompt", "checked"])
def test_a_connection_that_fails_is_an_error_of_the_service(own_environment, problems, when):
    problems.with_name("down_env.py").write_text(UNREACHABLE)
    config = GRPOConfig().environment("down_env:Down-v0", options={"when": when})
    with pytest.raises(ServiceError, match="environment.id: "):
        validate_environment(config)


def test_an_argument_that_is_wrong_is_no_error_of_a_service(own_environment, problems):
    problems.with_name("down_env.py").write_text(UNREACHABLE)
    with pytest.raises(ConfigError, match="no such table") as raised:
        validate_environment(GRPOConfig().environment("down_env:Down-v0", options={"when": "wrong"}))
    assert not isinstance(raised.value, ServiceError)


@pytest.mark.parametrize("mixed", [False, True])
def test_an_mcp_server_that_does_not_answer_is_an_error_of_the_service(problems, closed_port, mixed):
    pytest.importorskip("mcp")
    name, options = "r3env/Tools-v0", {"mcp_servers": {"web": {"url": f"http://127.0.0.1:{closed_port}/mcp"}}}
    if mixed:
        name, options = "r3env/Mixture-v0", {"environments": {"a": {"id": name, "options": options}}}
    with pytest.raises(ServiceError, match="web: .* could not be reached"):
        validate_environment(GRPOConfig().environment(name, data=str(problems), options=options))


@pytest.fixture
def closed_port():
    """A port of this machine on which nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


class Doubles(VerifiableEnv):
    """Its constructor takes what no file can hold."""

    def __init__(self, data=None, problems=lambda: range(4), **arguments):
        self.problems = problems
        super().__init__(**arguments)

    def load_queries(self):
        return [Query(str(n), f"Double {n}.", str(2 * n)) for n in self.problems()]

    def verify(self, query, response):
        return Verdict(response == query.answer, "in words")


def test_an_environment_is_a_class_or_registered_with_ray_and_takes_functions():
    register_env("doubles", lambda env_config: Doubles(**env_config))
    for environment in (Doubles, "doubles"):
        config = GRPOConfig().environment(environment, env_config={"problems": functools.partial(range, 6)})
        assert config.env == config.environment_settings.id
        assert validate_environment(config).queries == 6
        flat = GRPOConfig().update_from_dict(config.to_dict()).copy(copy_frozen=False)
        assert len(environment_makers(flat)[Split.TRAIN]().unwrapped.queries) == 6
    register_env("doubles", lambda env_config: Doubles(problems=lambda: range(3)))
    assert validate_environment(GRPOConfig().environment("doubles")).queries == 3
    _global_registry.unregister(ENV_CREATOR, "doubles")  # as another Ray knows nothing of it
    assert validate_environment(GRPOConfig().environment("doubles")).queries == 3
    assert validate_environment(GRPOConfig().update_from_dict({"env": Doubles})).queries == 4


def test_a_reward_function_of_a_module_may_be_given_itself():
    options = {"data": "embedded:train", "reward": [short]}
    config = GRPOConfig().environment("r3env/Function-v0", env_config=options)
    assert validate_environment(config, trial=True).trial.startswith("reference answers: ")
    options["reward"] = lambda response: 1.0
    with pytest.raises(
        ConfigError, match=r"^environment.options.reward: .*<lambda>' is not of the form module:function"
    ):
        validate_environment(GRPOConfig().environment("r3env/Function-v0", env_config=options))

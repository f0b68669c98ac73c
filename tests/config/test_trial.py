"""Answers that are judged before a run: what raises is named, and what counts as correct is said."""

import contextlib
import json
import threading

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import validate_environment
from algorithms.preflight.description import to_result
from algorithms.preflight.trial import try_out
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.agent import AgentEnv

FUNCTIONS = """
def right(response, answer):
    return float(answer in response)

def said(response, answer):
    return answer in response

def brief(response):
    return 1.0 / (1 + len(response))

def raises(response, unit="m"):
    return {}[unit]

def lists(response):
    return [1.0]

def number(response):
    return float(response.removeprefix("\\\\boxed{").removesuffix("}"))
"""


class Env(VerifiableEnv):
    """Two sums."""

    def load_queries(self):
        return [Query("a", "1+1", "2"), Query("b", "1+2", "3")]

    def verify(self, query, response):
        correct = query.answer in response
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


class Boxed(Env):
    """Its reference answers are in another form than the one that it reads."""

    def verify(self, query, response):
        return Verdict(False, Reason.NO_ANSWER)

    def answer_form(self, query):
        return "a number behind '####'"


class Number(Env):
    def verify(self, query, response):
        return 0.5


class Coroutine(Env):
    async def verify(self, query, response):
        return Verdict(True, Reason.EQUAL)


class NoSecond(Env):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"uid": options.pop("uid"), **{key: 1 for key in options}})


class Reversed(Env):
    """Judges the other way round."""

    def verify(self, query, response):
        return Verdict(query.answer not in response, "in words")


class Exits(Env):
    def verify(self, query, response):
        raise SystemExit("no license")


class Hangs(Env):
    def verify(self, query, response):
        threading.Event().wait()


class NoReset(Env):
    def reset(self, **arguments):
        raise OSError("the server is gone")


class Nothing(Env):
    def reward(self, query, verdict):
        return float("nan")


@pytest.fixture
def configured(tmp_path):
    """A configuration with reward functions of the file above."""
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    rows = [{"problem": f"{n}+1", "answer": str(n + 1)} for n in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(*names, id="r3env/Function-v0", **options):
        reward = [f"{tmp_path}/mine.py:{name}" for name in names]
        options = {"data": str(tmp_path / "rows.jsonl"), "reward": reward, "grading_timeout_s": 30.0, **options}
        return GRPOConfig().environment(id, env_config=options)

    return make


def tried(config):
    return validate_environment(config, trial=True).trial


def refused(config):
    with pytest.raises(ConfigError) as error:
        tried(config)
    return str(error.value)


def test_what_the_answers_get_is_a_line_of_the_report(configured):
    assert tried(configured("said")) == (
        "reference answers: 2 of 2 correct, reward 1; 'I do not know.': 0 of 2 correct, reward 0"
    )


def test_a_function_that_raises_is_named_with_its_setting_its_line_and_the_fix(configured):
    said = refused(configured("raises"))
    assert said.startswith("environment.options.reward: every answer that was tried failed: ")
    assert "mine.py:raises: KeyError: 'm' (mine.py, line 12)" in said and "fix: `python -m r3env.inspect" in said


def test_a_function_that_returns_no_number_is_named(configured):
    assert "mine.py:lists: TypeError: returned a list; return a number" in refused(configured("lists"))


def test_one_that_fails_on_some_answers_is_said_and_not_refused(configured):
    said = tried(configured("number"))
    assert "; 2 of 4 FAILED: " in said and "mine.py:number: ValueError: could not convert" in said
    assert said.endswith("on 'I do not know.'")


def test_the_part_of_a_mixture_is_named(configured):
    options = configured("raises").env_config
    config = GRPOConfig().environment(
        "r3env/Mixture-v0", env_config={"environments": {"own": {"id": "r3env/Function-v0", "options": options}}}
    )
    assert refused(config).startswith("environment.options.environments.own.options.reward: every answer")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Exits, "step: SystemExit('no license') (test_trial.py, line "),
        (NoReset, "reset: OSError('the server is gone') (test_trial.py, line "),
        (Nothing, "step: ValueError('reward nan is not a finite number')"),
        (Number, "step: TypeError('verify must return a Verdict, such as Verdict(correct, Reason.EQUAL), it returned"),
        (Coroutine, "step: TypeError('verify must return a Verdict, such as Verdict(correct, Reason.EQUAL), it re"),
    ],
)
def test_an_environment_that_fails_is_named_with_its_error(kind, error):
    environment = kind()
    with pytest.raises(ConfigError) as raised:
        try_out(environment, environment.uids)
    assert str(raised.value).startswith(f"environment.id: every answer that was tried failed: {error}")


def test_judgments_that_can_hardly_be_meant_are_said():
    said = try_out(Reversed(), ["a", "b"])
    assert said.endswith(
        "; LOOK AT verify: 2 of 2 reference answers are graded incorrect ('\\\\boxed{2}' on problem 'a'), and "
        "'I do not know.' is graded correct (on problem 'a')"
    )
    assert to_result([("trial", said)]).lines[-1].endswith("nothing is missing here; doubtful: trial")


def test_a_second_attempt_is_begun_where_the_run_begins_some():
    assert try_out(NoSecond(), ["a"]) == try_out(Env(), ["a"], reflects=True)
    with pytest.raises(ConfigError, match=r"environment.id: a second attempt, as in reflection, fails: reset: .*; fix"):
        try_out(NoSecond(), ["a"], reflects=True)


def test_functions_in_actors_are_not_made_and_a_second_attempt_is_begun():
    assert try_out(Hangs(), ["a"], judges=False, limit_s=20).startswith("not tried: reward functions")
    with pytest.raises(ConfigError, match="a second attempt, as in reflection, fails"):
        try_out(NoSecond(), ["a"], reflects=True, judges=False)


def test_reward_actors_without_reward_functions_are_refused(configured):
    actors = {"reward_actor": {"replicas": 1}}
    validate_environment(configured("said").env_runners(**actors))
    with pytest.raises(ConfigError, match=r"^env_runners.reward_actor.replicas: r3env/Math-v0 has no reward functions"):
        validate_environment(GRPOConfig().environment("r3env/Math-v0").env_runners(**actors))


@pytest.mark.parametrize("part", ["r3env/Math-v0", f"{__file__}:Env"])
def test_a_mixture_s_part_of_ones_own_may_have_reward_functions_within_it(part):
    inner = {"id": "r3env/Mixture-v0", "options": {"environments": {"part": {"id": part}}}}
    config = GRPOConfig().environment("r3env/Mixture-v0", env_config={"environments": {"inner": inner}})
    config.env_runners(reward_actor={"replicas": 1})
    with pytest.raises(ConfigError) if part == "r3env/Math-v0" else contextlib.nullcontext():
        validate_environment(config)


def test_all_turns_are_counted():
    class EachTurnPays(Env):
        def reward(self, query, verdict):
            return 0.25

    said = try_out(EachTurnPays(max_turns=3), ["a"])
    assert said == "reference answers: 1 of 1 correct, reward 0.25; 'I do not know.': 0 of 1 correct, reward 0.75"


def test_one_that_never_returns_is_waited_for_no_longer_than_the_limit():
    environment = Hangs()
    assert try_out(environment, environment.uids, limit_s=0.1) == "0 of 4 answers judged within 0.1 s"


def test_without_problems_nothing_is_tried():
    assert try_out(Env(), []) == ""


AGENTS = """
import json, threading, urllib.request

def ask(query, base_url, **fields):
    body = json.dumps({"messages": [{"role": "user", "content": query.problem}], "model": "policy", **fields}).encode()
    with urllib.request.urlopen(base_url + "/chat/completions", body) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def twice(query, base_url, model):
    ask(query, base_url)
    return ask(query, base_url)

def raises(query, base_url, model):
    return {}[ask(query, base_url)]

def picky(query, base_url, model):
    return {"I do not know.": "9999"}[ask(query, base_url)]

def silent(query, base_url, model):
    return "2"

def cold(query, base_url, model):
    return ask(query, base_url, temperature=0.25)

def hangs(query, base_url, model):
    threading.Event().wait()
"""


@pytest.fixture
def agent(tmp_path):
    """A configuration with an agent of the file above."""
    (tmp_path / "agents.py").write_text(AGENTS)

    def make(name):
        options = {"data": "embedded:train", "agent": f"{tmp_path}/agents.py:{name}"}
        return GRPOConfig().environment("r3env/Agent-v0", env_config=options)

    return make


def test_an_agent_solves_one_problem(agent):
    assert tried(agent("twice")) == "reference answers: 1 of 1 correct, reward 1"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raises", "the agent failed: KeyError: "),
        ("silent", "the agent came to its end without a request to the policy"),
        ("cold", "HTTP Error 400"),
    ],
)
def test_an_agent_that_fails_is_named_with_its_setting(agent, name, error):
    said = refused(agent(name))
    assert said.startswith("environment.options.agent: every answer that was tried failed: ")
    assert error in said and "fix: `python -m r3env.inspect" in said


def test_an_agent_that_fails_with_the_reference_answer_alone_is_not_refused(agent):
    said = tried(agent("picky"))
    assert said.startswith(
        "reference answers: 0 of 1 correct; 'I do not know.': 0 of 1 correct, reward 0; 1 of 2 FAILED"
    )


def test_an_agent_that_never_asks_is_waited_for_no_longer_than_the_limit(tmp_path):
    (tmp_path / "agents.py").write_text(AGENTS)
    environment = AgentEnv("embedded:train", agent=f"{tmp_path}/agents.py:hangs")
    assert try_out(environment, environment.uids, limit_s=0.1) == "0 of 1 answers judged within 0.1 s"
    environment.close()


def test_the_agent_of_a_mixture_is_named(agent):
    options = agent("silent").env_config
    config = GRPOConfig().environment(
        "r3env/Mixture-v0", env_config={"environments": {"own": {"id": "r3env/Agent-v0", "options": options}}}
    )
    assert refused(config).startswith("environment.options.environments.own.options.agent: every answer")


def test_a_run_without_check_judges_nothing(configured):
    assert validate_environment(configured("raises")).trial == ""


def test_functions_that_all_return_numbers_are_warned_of_once_and_with_the_setting(configured, caplog):
    validate_environment(configured("right", "brief"))
    (warning,) = caplog.messages
    assert warning.startswith("environment.options.reward: right, brief all return numbers, so a response counts as")
    assert "fix: set environment.options.correct_at to the sum that means solved" in warning


@pytest.mark.parametrize(
    ("names", "options"),
    [(["right"], {}), (["said", "brief"], {}), (["right", "brief"], {"correct_at": 1.0}), (["raises", "brief"], {})],
    ids=["one", "a bool decides", "the setting is there", "unknown"],
)
def test_where_it_is_clear_what_is_correct_nothing_is_said(configured, caplog, names, options):
    validate_environment(configured(*names, **options))
    assert not caplog.messages


def test_functions_behind_tools_are_warned_of_too(configured, caplog):
    validate_environment(configured("right", "brief", id="r3env/Tools-v0", tools="tests.tools.sample_tools:multiply"))
    assert len(caplog.messages) == 1


def test_check_has_the_line():
    from algorithms.config.sections import RunSettings
    from algorithms.preflight.check import check

    config = GRPOConfig().environment("r3env/Math-v0", env_config={"data": "embedded:train"})
    lines = check(config.rl_module(model="embedded:tiny").env_runners(max_response_tokens=32), RunSettings()).lines
    (line,) = [line for line in lines if line.startswith("trial ")]
    assert "reference answers: 2 of 2 correct, reward 1; 'I do not know.': 0 of 2 correct, reward 0" in line


def test_a_reference_answer_in_which_none_is_found_is_said_with_what_was_looked_for():
    line = try_out(Boxed(), ["a", "b"])
    assert line.endswith("; NO ANSWER FOUND in 2 of the reference answers, looked for a number behind '####'")
    assert "NO ANSWER FOUND" not in try_out(Env(), ["a", "b"])

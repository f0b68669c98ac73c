"""`r3env.adapters.verifiers`, against the installed verifiers."""

import importlib.util

import pytest

if importlib.util.find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed (pip install 'verifiers>=0.3.1,<0.4')", allow_module_level=True)

from r3env.adapters.verifiers import VerifiersEnv
from r3env.agents.types import Completion, Policy
from r3env.registry import OptionError

MODULE = """
import verifiers as vf
from datasets import Dataset

async def right(completion, answer):
    return float(answer in completion[-1].content)

class Again(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="Again.")]

def load_environment(turns=2, temperature=None):
    train = Dataset.from_list([{"question": "1+2", "answer": "3"}, {"question": "2+2", "answer": "4"}])
    heldout = Dataset.from_list([{"question": "5+5", "answer": "10"}])
    return Again(
        dataset=train, eval_dataset=heldout, rubric=vf.Rubric(funcs=[right]), max_turns=turns, system_prompt="1+1=2",
        sampling_args={} if temperature is None else {"temperature": temperature},
    )
"""
POLICY = Policy(1.0, 1.0, 16)


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "vf_again.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(**options):
        made.append(VerifiersEnv("vf_again", **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("last", "reward"), [("It is 3.", 1.0), ("It is 4.", 0.0)])
def test_a_rollout_asks_the_policy_turn_by_turn_and_pays_the_rubric(make, last, reward):
    env = make()
    observation, info = env.reset(options={"uid": "0", "policy": POLICY})
    assert observation == "1+2" and info["conversation"] == ({"role": "system", "content": "1+1=2"},)
    observation, paid, over, _, info = env.complete(Completion("first "))
    assert (observation, paid, over) == ("Again.", 0.0, False)
    assert info["next_turn"].follows == 0, "the same conversation, token for token"
    _, paid, over, _, info = env.complete(Completion(last))
    assert (paid, over, info["correct"]) == (reward, True, reward == 1.0)


def test_held_out_rows_and_options_are_the_environments_own(make):
    env = make(data="heldout", options={"turns": 1})
    assert [env.query(uid).answer for uid in env.uids] == ["10"]
    env.reset(options={"uid": "0", "policy": POLICY})
    assert env.complete(Completion("10"))[1:3] == (1.0, True)
    with pytest.raises(ValueError, match="data must be train or heldout"):
        make(data="tests")


def test_what_the_run_does_not_give_is_the_episodes_error(make):
    env = make(options={"temperature": 0.3})
    with pytest.raises(RuntimeError, match="temperature: the run samples at 1, not 0.3"):
        env.reset(options={"uid": "1", "policy": POLICY})


def test_an_environment_that_cannot_be_loaded_is_one_line():
    with pytest.raises(OptionError, match="name: 'no_such_thing' cannot be loaded"):
        VerifiersEnv("no_such_thing")
    with pytest.raises(OptionError, match="name: names no environment"):
        VerifiersEnv()

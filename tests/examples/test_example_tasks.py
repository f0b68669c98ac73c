"""What the examples ask, answer and pay."""

from pathlib import Path

import gymnasium
import pytest
import yaml
from gymnasium.utils.env_checker import check_env

from examples.counter_game import CounterGame
from examples.guess_number import GuessNumber
from examples.hinted_sums import HintedSums
from examples.judge_sums import JudgeSums
from examples.retrieve_answer import RetrieveAnswer
from examples.sort_digits import SortDigits
from examples.write_function import WriteFunction
from r3env.inspect import main as inspect

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS = ["sort_digits:SortDigits-v0", "guess_number:GuessNumber-v0", "write_function:WriteFunction-v0"]
IDS += ["retrieve_answer:RetrieveAnswer-v0"]
IDS += ["counter_game:CounterGame-v0", "hinted_sums:HintedSums-v0", "judge_sums:JudgeSums-v0"]
TASKS = [SortDigits, GuessNumber, WriteFunction, CounterGame, HintedSums, RetrieveAnswer, JudgeSums]


@pytest.mark.parametrize("name", IDS)
def test_made_by_id_without_arguments(name):
    check_env(gymnasium.make(f"examples.{name}").unwrapped)


@pytest.mark.parametrize("environment", TASKS)
def test_held_out_queries_are_others(environment):
    train, held_out = (set(environment(data=data).uids) for data in ("train", "heldout"))
    assert train and held_out and not train & held_out


@pytest.mark.parametrize(("name", "most"), [("sort_digits", 30), ("guess_number", 60)])
def test_as_short_as_the_documentation_says(name, most):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= most


@pytest.mark.parametrize(("response", "reward"), [("01379", 1.0), ("It is 01379", 1.0), ("1379", 0.0), ("", 0.0)])
def test_sorted_digits(response, reward):
    env = SortDigits()
    env.numbers = [97310]
    assert env.reset()[0] == "Sort the digits of 97310."
    assert env.step(response)[1:3] == (reward, True)


def test_halving_finds_any_number():
    env = GuessNumber()
    for uid in env.uids[::50]:
        env.reset(options={"uid": uid})
        low, high, over = 1, 1000, False
        while not over:
            guess = (low + high) // 2
            hint, reward, over, _, info = env.step(f"From {low} to {high}: {guess}")
            low, high = (guess + 1, high) if "higher" in hint else (low, guess - 1)
        assert (reward, info["correct"]) == (1.0, True)


def test_a_game_ends_after_its_last_guess():
    env = GuessNumber(max_turns=2)
    env.reset(options={"uid": env.uids[0]})
    observation, *_, info = env.step("no idea, perhaps 5000")
    assert observation.startswith("There is no number") and info["verdict"] == "no_answer"
    assert env.step("0")[1:3] == (0.0, True)


@pytest.mark.parametrize("data", ["train", "heldout"])
@pytest.mark.parametrize("environment", TASKS)
def test_the_gold_of_every_query_passes_its_own_verifier(environment, data):
    env = environment(data=data)
    for query in env.queries.values():
        assert env.verify(query, env.reference_response(query)).correct, query.uid


@pytest.mark.parametrize("name", IDS)
def test_inspect_agrees_with_the_gold(name, capsys):
    assert inspect(["--env", f"examples.{name}", "--n", "2", "--gold"]) == 0
    assert capsys.readouterr().out.count("equal correct=True reward=1 (the end)") == 2


def test_prose_around_the_code_block_does_not_matter():
    env = WriteFunction()
    response = f"So:\n{env.reference_response(env.query('double'))}\nDone."
    assert env.verify(env.query("double"), response).correct


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def is_even(n):\n    return n % 2 == 1", "different"),
        ("def is_even(n):\n    return 1 - n % 2", "different"),
        ("def even(n):\n    return n % 2 == 0", "different"),
        ("def is_even(n):\n    while True:\n        pass", "different"),
        ("def is_even(n", "different"),
    ],
)
def test_wrong_functions(code, reason):
    env = WriteFunction(cpu_s=1)
    assert env.verify(env.query("is_even"), f"```python\n{code}\n```").reason == reason


def test_without_a_code_block_there_is_no_answer():
    env = WriteFunction()
    assert env.verify(env.query("is_even"), "def is_even(n): return n % 2 == 0").reason == "no_answer"


def test_the_last_code_block_counts():
    env = WriteFunction()
    blocks = "```python\ndouble = abs\n```\nNo:\n```\ndouble = lambda n: 2 * n\n```"
    assert env.verify(env.query("double"), blocks).correct


def test_a_sandbox_that_does_not_start_says_nothing_about_the_answer(monkeypatch):
    monkeypatch.setattr("examples.sandbox._CHILD", "raise SystemExit(1)")
    env = WriteFunction()
    assert env.verify(env.query("double"), "```python\ndouble = abs\n```").reason == "error"


def played(env, *turns):
    """What each turn of a game is told, pays and leaves behind."""
    _, info = env.reset(options={"uid": "16-to-12"})
    found = [("", 0.0, info["state"])]
    for turn in turns:
        _, reward, _, _, info = env.step(turn)
        found.append((info.get("feedback", ""), reward, info["state"]))
    return found[1:]


def test_a_counter_follows_commands_and_wrong_ones_are_diagnosed_and_cost():
    env = CounterGame("heldout", max_turns=5)
    at = "The counter is at {}, and not at 12.".format
    assert played(env, "I begin:\n/2 +9", "*3", "", "+9\nso /2 *2 *2", "what is left is\n-9 -9 -2") == [
        (at(17), 0.0, "17"),
        (f"There is no command *3. {at(17)}", -0.1, "17"),
        (f"There is no command in the last line of your turn. {at(17)}", -0.1, "17"),
        (f"17 is odd: /2 cannot be carried out. {at(17)}", -0.1, "17"),
        (f"-9 would leave the counter at -1. {at(8)} It is set back to 16.", -0.1, "8"),
    ]
    assert played(env, "-5", "+1") == [(at(11), 0.0, "11"), ("", 1.0, "12")]


def test_more_than_three_commands_are_not_carried_out():
    ((said, reward, state),) = played(CounterGame("heldout"), "-1 -1 -2 +1 -1")
    assert said.startswith("Only the first 3 commands") and (reward, state) == (-0.1, "12")
    assert "not at" not in said


def test_a_game_begins_anew_after_a_failed_attempt_and_says_so():
    env = CounterGame("heldout")
    text, info = env.reset(options={"uid": "16-to-12", "failed_attempt": "+1"})
    assert text == "That did not reach 12. The counter is set back to 16. Try again." and info["state"] == "16"


def test_hints_of_a_sum_tell_ever_more_and_keep_its_answer():
    env = HintedSums()
    uid = "7-5+7+8-5-2+9-5-2+8-6+6-9+8+1"
    shown = [env.reset(options={"uid": uid, "hint": hint})[0] for hint in env.query(uid).info["hints"]]
    assert shown[0] == f"{uid}\n\n7+7+8+9+8+6+8+1=54"
    assert shown[1] == f"{uid}\n\n7+7+8+9+8+6+8+1=54 5+5+2+5+2+6+9=34"
    assert shown[2:] == ["17-5-2+9-5-2+8-6+6-9+8+1", "14-2+8-6+6-9+8+1", "14+6-9+8+1", "19+1"]
    assert env.reset(options={"uid": uid})[0] == uid
    for query in list(env.queries.values())[:20]:
        left = query.info["hints"][2:]
        assert all(eval(each) == int(query.answer) for each in left)
        assert sorted(left, key=len, reverse=True) == left


@pytest.mark.parametrize(
    ("response", "reward", "verdict"),
    [
        ("\\boxed{incorrect}", 1.0, "equal"),
        ("\\boxed{\\text{Incorrect}}", 1.0, "equal"),
        ("\\boxed{correct}", 0.0, "different"),
        ("incorrect", 0.0, "no_answer"),
    ],
)
def test_a_judgment_is_paid_if_it_is_right(response, reward, verdict):
    env = JudgeSums()
    wrong = [query.uid for query in env.queries.values() if query.answer == "incorrect"]
    assert 180 <= len(wrong) <= 200 and len(env.uids) == 400
    text, _ = env.reset(options={"uid": wrong[0]})
    assert "\n\nSolution: " in text and text.endswith("or \\boxed{incorrect}.")
    _, paid, over, _, info = env.step(response)
    assert (paid, over, info["verdict"]) == (reward, True, verdict)


def test_a_fifth_of_the_mixture_are_judgments():
    """The mixture of docs/guides/judgments.md."""
    page = (EXAMPLES.parent / "docs" / "guides" / "judgments.md").read_text()
    environment = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["environment"]
    env = gymnasium.make(environment["id"], data=environment["data"], **environment["options"]).unwrapped
    parts = [uid.partition("/")[0] for uid in env.uids]
    assert parts.count("judgments") / len(parts) == pytest.approx(0.2, abs=0.01) and len(parts) > 200
    uid = next(uid for uid in env.uids if uid.startswith("judgments/"))
    assert (
        "Solution: " in env.reset(options={"uid": uid})[0] and env.step(f"\\boxed{{{env.query(uid).answer}}}")[1] == 1
    )

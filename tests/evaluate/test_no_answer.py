"""Most responses hold no answer: the tables have a row, and one line says what was looked for and the ways out."""

import json
import logging

import gymnasium
import pytest

import r3env  # noqa: F401  registers its environments
from algorithms.evaluate import main
from algorithms.evaluation.console import score_table
from algorithms.evaluation.metrics import benchmark_scores, summarize
from algorithms.evaluation.no_answer import FIRST_STEPS, MissingAnswersWatch, missing_answers
from algorithms.evaluation.responses import Response
from algorithms.evaluation.sampling import Answer
from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.types import Prompt, Request, Sampling, Split, Written
from tests.hand_made import answer as rollout_of
from tests.training.conftest import configure

FOUND, MISSING, JUDGED = "different", "no_answer", "equal"
TOKENIZER = load_tokenizer(resolve_model("embedded:tiny"))
BOX = "a final answer in \\boxed{}"
CHOICES = [{"uid": str(n), "problem": f"Which is {n}+1?\n\nA) 1\nB) {n + 1}\nC) 30", "answer": "B"} for n in range(4)]


def responses(*verdicts, truncated=(), text="so it is 7"):
    return [
        Response("b", str(n), None, 0, "p", text, "7" if verdict == FOUND else None, False, n in truncated, verdict, 4)
        for n, verdict in enumerate(verdicts)
    ]


def said(given):
    return missing_answers("b", given, lambda one: one.response, lambda one: BOX)


def test_the_line_comes_from_half_of_the_responses_on():
    assert said([]) is None
    assert said(responses(MISSING, FOUND, FOUND)) is None
    assert said(responses(FOUND, JUDGED, "timeout")) is None
    assert "no answer was found in 50% of 4 responses" in said(responses(MISSING, MISSING, FOUND, "timeout"))


def test_the_line_says_what_was_looked_for_and_the_three_ways_out():
    line = said(responses(MISSING))
    assert line.startswith("b: ") and f'Looked for {BOX}; one response ends "so it is 7"; fix: ' in line
    for way in ("environment.instruction", "r3env/Function-v0", "environment.answer", "fine-tuned on solutions"):
        assert way in line
    assert "max_response_tokens" not in line, "none was truncated"


def test_truncated_responses_are_counted_apart_and_ask_for_a_higher_limit():
    given = responses(MISSING, MISSING, MISSING, truncated=(0, 2))
    line = said(given)
    assert "(2 of these 3 truncated)" in line and "raise env_runners.max_response_tokens" in line
    few = said(responses(*[MISSING] * 4, truncated=(0,)))
    assert "(1 of these 4 truncated)" in few and "max_response_tokens" not in few


def test_a_finished_response_is_shown_before_a_truncated_one():
    cut, whole = responses(MISSING, text="and then we")[0], responses(MISSING, text="The answer is 7.")[0]
    given = [Response(**{**vars(cut), "truncated": True}), whole]
    assert 'ends "The answer is 7."' in said(given)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("a\nb\tc", r'"a\nb\tc"'),
        ("\x1b[31mred\x00", r'"\x1b[31mred\x00"'),
        ("lone \ud800", r'"lone \ud800"'),
        ("é 7 × 2", '"é 7 × 2"'),
        ("x" * 121, f'"…{"x" * 120}"'),
    ],
)
def test_the_end_of_a_response_is_one_line_without_control_characters(text, shown):
    line = said(responses(MISSING, text=text))
    assert f"ends {shown}; fix" in line and line.isprintable()


def test_each_environment_says_what_it_looks_for(tmp_path):
    choices = tmp_path / "choices.jsonl"
    choices.write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    (tmp_path / "rewards.py").write_text("def fine(response):\n    return True\n")
    parts = {
        "box": {"id": "r3env/Math-v0"},
        "letter": {"id": "r3env/Choice-v0", "options": {"data": str(choices)}},
        "judged": {"id": "r3env/Function-v0", "options": {"reward": f"{tmp_path / 'rewards.py'}:fine"}},
        "tools": {"id": "r3env/Tools-v0", "options": {"tools": "examples.calculator:multiply"}},
        "tags": {"id": "r3env/ReasoningGym-v0", "options": {"size": 2}},
    }
    mixture = gymnasium.make("r3env/Mixture-v0", environments=parts, disable_env_checker=True).unwrapped
    first = {}
    for uid in mixture.uids:
        first.setdefault(uid.partition("/")[0], mixture.query(uid))
    forms = {name: mixture.answer_form(query) for name, query in first.items()}
    mixture.close()
    assert forms["box"] == forms["tools"] == BOX
    assert "'Answer:'" in forms["letter"] and "<answer>" in forms["tags"] and "rewards.py:fine" in forms["judged"]


def test_the_share_is_measured_where_an_answer_is_read():
    (one,) = benchmark_scores(responses(MISSING, FOUND, FOUND, FOUND), ks=[1]).values()
    assert one["scores"]["no_answer"].mean == 0.25 and list(one["scores"])[-2:] == ["truncated", "no_answer"]
    assert {problem["no_answer"] for problem in one["by_problem"].values()} == {0.0, 1.0}
    (every,) = benchmark_scores(responses(FOUND, FOUND), ks=[1]).values()
    assert every["scores"]["no_answer"].mean == 0.0


def test_a_judge_of_the_whole_response_has_no_row():
    """Such as a reward function that returns a number: no answer is read that could be missing."""
    (one,) = benchmark_scores([Response(**{**vars(r), "correct": True}) for r in responses(JUDGED)], ks=[1]).values()
    assert "no_answer" not in one["scores"]
    (some,) = benchmark_scores(responses(MISSING, "different", "different")[:1], ks=[1]).values()
    assert some["scores"]["no_answer"].mean == 1.0, "but it may say so itself"


def test_the_table_has_the_row_beside_truncated():
    table = score_table(benchmark_scores(responses(MISSING, FOUND), ks=[1]))
    labels = list(table.columns[0].cells)
    assert labels[labels.index("truncated") + 1] == "no answer"
    assert list(table.columns[1].cells)[labels.index("no answer")] == "50.0%"


def rollouts(verdict, count=4, uid="0", split=Split.EVALUATION):
    request = Request(0, Prompt(uid), 0, 0, Sampling(), split)
    tokens = TOKENIZER.encode("1+2", add_special_tokens=False)
    more = {"verdict": verdict, "messages": ({"role": "user", "content": "?"}, Written(1, 1 + len(tokens)))}
    return [rollout_of(request, prompt=[5], response=tokens, correct=False, **more) for _ in range(count)]


def test_training_s_own_numbers_have_the_share():
    answers = [[Answer(0, one, None, False)] for one in [*rollouts(MISSING, 1), *rollouts(FOUND, 3)]]
    assert summarize(answers, [1])["no_answer"] == 0.25


@pytest.fixture
def watch():
    environment = gymnasium.make("r3env/Math-v0", disable_env_checker=True)
    uid = environment.unwrapped.uids[0]
    return MissingAnswersWatch({Split.TRAIN: environment, Split.EVALUATION: environment}, TOKENIZER), uid


def test_it_is_said_once(watch):
    seen, uid = watch
    assert seen.observe_evaluation(rollouts(FOUND, uid=uid)) is None
    line = seen.observe_evaluation(rollouts(MISSING, uid=uid))
    assert line.startswith("evaluation: ") and 'ends "1+2"' in line and BOX in line
    assert seen.observe_evaluation(rollouts(MISSING, uid=uid)) is None


def test_the_first_steps_say_it_where_no_evaluation_came_before(watch):
    seen, uid = watch
    missing = rollouts(MISSING, uid=uid, split=Split.TRAIN)
    assert seen.observe_step(FIRST_STEPS + 1, missing) is None
    assert seen.observe_step(1, missing).startswith("step 1: ")
    assert seen.observe_step(2, missing) is None


def test_a_step_after_an_evaluation_says_nothing(watch):
    seen, uid = watch
    assert seen.observe_evaluation(rollouts(FOUND, uid=uid)) is None
    assert seen.observe_step(1, rollouts(MISSING, uid=uid, split=Split.TRAIN)) is None


@pytest.fixture
def choices(tmp_path):
    """Questions that the embedded model answers in its own way: a chain of sums and a box, never a letter."""
    path = tmp_path / "choices.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    return path


def test_the_command_says_it_below_its_table_and_again_when_it_is_repeated(choices, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--model", "embedded:tiny", "--data", f"letters={choices}", "--samples", "2", "--out", str(out)]
    arguments += ["environment.id=r3env/Choice-v0", "environment.instruction=''", "env_runners.max_response_tokens=64"]
    for _ in range(2):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert "no answer" in text.split("letters: ")[0], "the table's row"
        assert "letters: no answer was found in 100% of 8 responses" in text and "behind 'Answer:'" in text
    assert json.loads((out / "scores.json").read_text())["letters"]["scores"]["no_answer"]["mean"] == 1.0


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_training_says_it_once(choices, caplog, evaluated):
    config = configure(GRPOConfig()).environment("r3env/Choice-v0", data=str(choices), instruction="", env_config={})
    config = config.training(queries_per_step=2, group_size=2, minibatches=1).evaluation(data=None, interval=0)
    algorithm = config.build_algo()
    try:
        with caplog.at_level(logging.WARNING):
            if evaluated:
                assert algorithm.evaluate()["no_answer"] == 1.0
            algorithm.train()
            algorithm.train()
        assert algorithm.batch.record["response/no_answer"] == 1.0
    finally:
        algorithm.stop()
    lines = [message for message in caplog.messages if "no answer was found" in message]
    assert len(lines) == 1 and lines[0].startswith("evaluation: " if evaluated else "step 1: ")

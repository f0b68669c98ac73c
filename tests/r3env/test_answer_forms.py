"""Final answers that stand in no box: the last number of a response, or what follows a text."""

import time

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.environments import validate_environment
from r3env.core import REFLECTION_GUIDANCE, Reason
from r3env.envs.agent import AgentEnv
from r3env.envs.choice import ChoiceEnv
from r3env.envs.function import FunctionEnv
from r3env.envs.math import MATH_INSTRUCTION, MathEnv
from r3env.envs.mixture import MixtureEnv
from r3env.grading import grade
from r3env.grading.extraction import final_answer
from r3env.registry import OptionError

SOLUTION = "She eats 3 and bakes 4, so 16 - 3 - 4 = <<16-3-4=9>>9 are left.\nShe makes 9 * 2 = $<<9*2=18>>18.\n#### 18"

LAST_NUMBERS = [
    (SOLUTION, "18"),
    ("It costs $18.", "18"),
    ("So angle B is 60°.", "60"),
    (r"Angle A is 30, so B is $60^{\circ}$.", "60"),
    ("It is 75°F.", "75"),
    (r"It is the 5^{th}.", "5"),
    (r"It is \boldsymbol{18}.", "18"),
    ("It costs $1,234,567.89.", "1,234,567.89"),
    ("So there are 1{,}000 apples", "1000"),
    ("It falls to -3.5 degrees.", "-3.5"),
    ("The loss is -$18.50!", "-18.50"),
    ("The loss is $-18", "-18"),
    ("The change is \u22125.", "-5"),
    ("We compute 10-3", "3"),
    ("We compute 10 - 3", "3"),
    ("3/4 of it", "3/4"),
    ("It is 1 3/4 cups.", r"1\frac{3}{4}"),
    ("It earns $1.5 million.", "1500000"),
    (r"It is \(2\frac{1}{2}\).", r"2\frac{1}{2}"),
    (r"It is $\frac{3}{4}$.", r"\frac{3}{4}"),
    ("That is 50%.", "50%"),
    (r"That is $1.2 \times 10^3$.", r"1.2 \times 10^3"),
    ("1, 2, 3", "3"),
    ("Either 5 or 6 or 7", "7"),
    ("The ratio is 3:2.", "3:2"),
    ("The area is 12 cm^2.", "12"),
    ("**18**", "18"),
    (r"It is $\text{18}$.", "18"),
    ("It is the 5th.", "5"),
    ("A bag weighs 18kg.", "18"),
    ("So 18\n\nThat is it.", "18"),
    ("Since x^2 = 5, it is x^2.", "5"),
    (r"In step 4 we get $2\pi$.", "4"),
    (r"It is $\sqrt{2}$.", None),
    ("It is 2^10.", None),
    ("It is 5x.", None),
    ("It is H2O.", None),
    ("None.", None),
    ("", None),
    (r"It is \boxed{7}, found in 3 steps.", "7"),
    ("<think>5</think> 6", "6"),
    ("<think>5</think> none", None),
    ("5 <think> 6", None),
]

AFTER = [
    (SOLUTION, "####", "18"),
    ("#### 5\n#### 6", "####", "6"),
    ("#### <<9*2=18>>18", "####", "18"),
    ("####18", "####", "18"),
    ("#### -5", "####", "-5"),
    ("#### 1,000.", "####", "1,000"),
    ("#### 5 or 6", "####", "5 or 6"),
    ("#### 5\nand 6", "####", "5"),
    ("####", "####", None),
    ("####\n5", "####", None),
    ("5", "####", None),
    (r"\boxed{5}", "####", None),
    ("<think>#### 4</think>#### 5", "####", "5"),
    ("<think>#### 4</think>", "####", None),
    ("<think>#### 4", "####", None),
    ("The answer is 5", "The answer is", "5"),
    ("THE ANSWER IS: **5**.", "The answer is", "5"),
    (r"The answer is $\boxed{\frac12}$, as said.", "The answer is", r"\frac12"),
    ("The answer is **$5$**. I hope it is correct.", "The answer is", "$5$"),
    ("The answer is 3.5 km.", "The answer is", "3.5 km"),
    ("The answer: 5", "The answer", "5"),
    ("Final answer is x = 5", "Final answer", "x = 5"),
    ("The answer is St. Louis.", "The answer is", "St. Louis"),
]


@pytest.mark.parametrize(("response", "number"), LAST_NUMBERS)
def test_the_last_number_of_a_response(response: str, number: str | None) -> None:
    assert final_answer(response, "last_number") == number


@pytest.mark.parametrize(("response", "text", "answer"), AFTER)
def test_what_follows_a_text(response: str, text: str, answer: str | None) -> None:
    assert final_answer(response, f"after:{text}") == answer


@pytest.mark.parametrize(("form", "correct"), [("box", False), ("last_number", True), ("after:####", True)])
def test_a_solution_of_gsm8k_is_correct_where_its_form_is_read(form: str, correct: bool) -> None:
    verdict = grade(SOLUTION, "18", form=form)
    assert (verdict.correct, verdict.answer) == (correct, "18" if correct else None)
    assert grade(SOLUTION, r"\boxed{18}", form=form).correct is correct


def test_guesses_are_paid_no_better_than_one() -> None:
    guesses = "Maybe 1, 2, 3 or 4"
    assert [grade(guesses, str(gold), form="last_number").correct for gold in (1, 2, 3, 4)] == [
        False,
        False,
        False,
        True,
    ]
    assert not any(grade(f"#### {guesses}", str(gold), form="after:####").correct for gold in (1, 2, 3, 4))


@pytest.mark.parametrize("form", ["last_number", "after:####"])
@pytest.mark.parametrize("unit", ["1", "1 ", "-", "1,000", "####", "$", "<<", "1/", "x\n", "5x\n", r"\frac{1}"])
def test_long_rubbish_is_read_in_linear_time(form: str, unit: str) -> None:
    started = time.process_time()
    final_answer(unit * (200_000 // len(unit)), form)
    assert time.process_time() - started < 20, "linear takes a second, quadratic hours"


@pytest.mark.parametrize("form", ["", "boxed", "after", "after:", "after: ", "lastnumber", 5, None])
def test_other_forms_are_refused(form: object) -> None:
    with pytest.raises(OptionError, match="answer: must be box, last_number or after:TEXT"):
        MathEnv(answer=form)
    with pytest.raises(ValueError, match="form must be box"):
        grade("5", "5", form=form)


def test_the_instruction_asks_for_the_form_that_is_read() -> None:
    box, number, hashes = MathEnv(), MathEnv(answer="last_number"), MathEnv(answer="after:####")
    assert (box.instruction, box.reflection_guidance) == (MATH_INSTRUCTION, REFLECTION_GUIDANCE)
    for env, words in ((number, "a number"), (hashes, "'####'")):
        assert words in env.instruction and words in env.reflection_guidance
        assert "boxed" not in env.instruction + env.reflection_guidance
    assert MathEnv(answer="after:####", instruction="Go.").instruction == "Go."


@pytest.mark.parametrize("form", ["box", "last_number", "after:####"])
def test_a_reference_response_is_correct_in_its_form(form: str) -> None:
    env = MathEnv(answer=form)
    for uid in env.uids[:20]:
        query = env.query(uid)
        assert env.verify(query, env.reference_response(query)).correct
        assert env.verify(query, "I do not know.").reason is Reason.NO_ANSWER


def test_a_number_outside_a_box_is_no_answer_by_default() -> None:
    env = MathEnv()
    query = env.query(env.uids[0])
    assert env.verify(query, f"It is {query.answer}.").reason is Reason.NO_ANSWER


def test_an_agent_may_return_text_of_the_form() -> None:
    env = AgentEnv(agent=lambda query, base_url, model: "", answer="after:####")
    query = env.query(env.uids[0])
    assert env.verify(query, f"So it is.\n#### {query.answer}").correct
    assert env.verify(query, query.answer).reason is Reason.NO_ANSWER


def test_parts_of_a_mixture_have_forms_of_their_own() -> None:
    parts = {"a": {"id": "r3env/Math-v0"}, "b": {"id": "r3env/Math-v0", "options": {"answer": "last_number"}}}
    env = MixtureEnv(parts)
    for name, correct in (("a", False), ("b", True)):
        query = env.query(f"{name}/{MathEnv().uids[0]}")
        assert env.verify(query, f"It is {query.answer}.").correct is correct
    common = MixtureEnv({"a": parts["a"]}, answer="last_number")
    query = common.query(f"a/{MathEnv().uids[0]}")
    assert common.verify(query, f"It is {query.answer}.").correct


@pytest.mark.parametrize("make", [ChoiceEnv, lambda **options: FunctionEnv(reward="math:sqrt", **options)])
def test_environments_that_read_no_form_refuse_one(make) -> None:
    with pytest.raises(OptionError, match="answer: .*fix: leave it out"):
        make(answer="last_number")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"answer": "boxed"},
            "environment.answer: must be box, last_number or after:TEXT, such as after:####, it is 'boxed'",
        ),
        (
            {"id": "r3env/Choice-v0", "answer": "last_number"},
            "environment.answer: the answer is a letter; fix: leave it out",
        ),
    ],
)
def test_a_form_that_cannot_be_is_one_line_that_names_the_setting(settings, line) -> None:
    config = GRPOConfig().apply({"environment": settings})
    with pytest.raises(ConfigError) as error:
        validate_environment(config)
    assert str(error.value).startswith(line)


def test_the_setting_reaches_the_environment() -> None:
    config = GRPOConfig().apply({"environment": {"answer": "after:####"}})
    assert config.environment_settings.constructor_arguments() == {"answer": "after:####"}
    assert "'####'" in validate_environment(config).prompts[0]

"""The tasks of the evidence: their ways of working do what docs/results/evidence-log.md says of them."""

import json
import random

import pytest
from tokenizers import AddedToken

from benchmarks.evidence.base import DEVELOPMENT, HELD_OUT, TRAINING, write_problems
from benchmarks.evidence.tasks import TASKS, WORDS_PROMPT
from benchmarks.evidence.teacher import Lesson, Teacher
from r3env.assets.arithmetic import REFLECTION_GUIDANCE
from r3env.assets.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (WORDS_PROMPT, "<answer>", "</answer>")])
    return tokenizer


@pytest.fixture(params=sorted(TASKS))
def task(request):
    return TASKS[request.param]


def problems_of(task):
    rng = random.Random(3)
    return [task.problem(rng, size) for size in task.tested for _ in range(50)]


def test_the_short_and_the_long_way_are_right_and_the_hasty_one_is_wrong(task):
    for problem in problems_of(task):
        assert task.is_right(problem.answer, problem.short), problem
        assert task.is_right(problem.answer, problem.long), problem
        assert not task.is_right(problem.answer, problem.hasty), problem


def test_a_slip_mostly_ends_in_a_wrong_answer(task):
    problems = problems_of(task)
    wrong = [not task.is_right(problem.answer, problem.slipped) for problem in problems]
    assert sum(wrong) / len(problems) > 0.9  # a total at the edge of the range slips to itself


def test_the_short_way_fits_the_limit_and_the_long_one_does_not(task, tokenizer):
    for problem in problems_of(task):
        length = {way: len(tokenizer.encode(getattr(problem, way))) for way in ("short", "long", "hasty")}
        assert length["hasty"] <= length["short"] < task.response_limit < length["long"], problem


def test_shares_of_ways_are_those_of_the_lesson(task, tokenizer):
    teacher = Teacher(tokenizer, task, frozenset(), seed=0)
    lesson = Lesson(1, reflection=0.0, ways=(0.0, 0.6, 0.4))
    cut_off = [len(teacher.example(lesson).response) == task.response_limit for _ in range(400)]
    # Small problems fit in the long way as well, so that the share is below 0.6.
    assert 0.2 < sum(cut_off) / 400 < 0.6


def test_second_turns_follow_a_failed_attempt_and_work_in_the_short_way(task, tokenizer):
    teacher = Teacher(tokenizer, task, frozenset(), seed=0)
    lesson = Lesson(1, reflection=1.0, ways=(0.0, 0.6, 0.4))
    for _ in range(100):
        example = teacher.example(lesson)
        assert REFLECTION_GUIDANCE in tokenizer.decode(example.prompt)
        response = tokenizer.decode(example.response, skip_special_tokens=True)
        assert len(example.response) < task.response_limit
        assert "boxed" in response or "</answer>" in response


def test_no_problem_is_in_two_files_and_none_that_is_tested_is_taught(tmp_path, tokenizer):
    task = TASKS["sums"]
    tested = write_problems(task, tmp_path, seed=0)
    texts = {
        name: {json.loads(line)["problem"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "dev", "heldout")
    }
    sizes = len(task.tested)
    assert [len(texts[name]) for name in texts] == [sizes * n for n in (TRAINING, DEVELOPMENT, HELD_OUT)]
    assert len(set.union(*texts.values())) == sum(len(found) for found in texts.values())
    assert tested == texts["dev"] | texts["heldout"]
    # The problems taught are drawn from the same generator: with the same seed, all of those held back would come.
    taught = Teacher(tokenizer, task, tested, seed=0)
    lesson = Lesson(1, reflection=0.0, ways=(1.0, 0.0, 0.0))
    prompts = {tokenizer.decode(taught.example(lesson).prompt) for _ in range(2000)}
    assert not any(f"<|user|>{text}<|end|>" in prompt for text in tested for prompt in prompts)

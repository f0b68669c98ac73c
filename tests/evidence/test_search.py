"""The task with long, branching answers."""

import random
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evidence import search
from benchmarks.evidence.search import RARE, chance, is_solved, moves, random_line, random_search, text_of
from r3env.assets.lessons import Example
from r3env.assets.tokenizer import build_tokenizer

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_search_that_ends_solves_its_problem_and_no_other(seed):
    rng = random.Random(seed)
    numbers, target = search.random_problem(rng)
    response = random_search(rng, (numbers, target))
    ends = response.endswith("!")
    assert is_solved(text_of((numbers, target)), response) == ends
    assert not is_solved(text_of((numbers, target + 1)), response)
    assert not is_solved(text_of(((*numbers[:-1], 13), target)), response)


def test_a_line_has_to_be_played_with_what_is_left_and_to_be_right():
    assert is_solved("2 3 5 7>41", "2+3=5 5+5=10 7+10=17\n5*7=35 2*3=6 6+35=41!")
    for line in ("5*7=35 2*3=6 6+35=41", "5*7=36 2*3=6 6+36=42!", "5*7=35 5+35=40 2+40=42!", "2*3=6 6+35=41!", "41!"):
        assert not is_solved("2 3 5 7>41", line), line


def test_the_chance_of_a_random_line_is_the_share_of_random_lines():
    rng = random.Random(0)
    numbers, target = (2, 3, 5, 7), 41
    share = sum(random_line(rng, numbers)[1] == target for _ in range(20_000)) / 20_000
    assert abs(share - chance(numbers, target)) < 0.003


def test_chances_of_all_ends_add_up_where_a_move_is_always_left():
    numbers = (1, 2, 3)
    ends = {left[0] for _, two in moves(numbers) for _, left in moves(two)}
    assert sum((chance(numbers, end) for end in ends), Fraction(0)) == 1


def test_problems_are_rarely_solved_all_different_and_kept_from_the_base(monkeypatch):
    monkeypatch.setattr(search, "PROBLEMS", {"train": 3, "dev": 2, "heldout": 2})
    drawn = search.rare_problems(random.Random(0))
    problems = [one for part in drawn.values() for one in part]
    assert len(set(problems)) == 7 and all(RARE[0] <= chance(*one) <= RARE[1] for one in problems)
    rng = random.Random(0)
    teacher = search.Teacher(build_tokenizer(), frozenset({search.random_problem(random.Random(0))}), 0)
    assert search.random_problem(rng) in teacher.kept_from_it
    example = teacher.example()
    assert isinstance(example, Example) and len(example.response) <= search.RESPONSE_LIMIT
    prompt = teacher.tokenizer.decode(example.prompt)
    assert not any(text_of(one) in prompt for one in teacher.kept_from_it)


def test_problems_are_written_as_the_environment_reads_them(tmp_path):
    from r3env.envs.function import FunctionEnv

    search.write({"train": [((2, 3, 5, 7), 41)]}, tmp_path)
    env = FunctionEnv(str(tmp_path / "train.jsonl"), reward="benchmarks.evidence.search:is_solved")
    try:
        env.reset(options={"uid": "train-000"})
        _, reward, *_ = env.step("5*7=35 2*3=6 6+35=41!")
        assert reward == 1.0
    finally:
        env.close()

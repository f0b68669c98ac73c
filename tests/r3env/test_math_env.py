"""`r3env/Math-v0`."""

import json
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import r3env
from r3env.core import REFLECTION_GUIDANCE
from r3env.envs.math import MATH_INSTRUCTION, MathEnv


@pytest.fixture
def problems(tmp_path: Path) -> str:
    rows = [
        {"uid": "sum", "question": "Add 1 and 2.", "answer": 3},
        {"uid": "half", "question": "Halve 1.", "answer": "\\frac{1}{2}"},
    ]
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.filterwarnings("ignore:.*not having a spec")
def test_passes_gymnasiums_checker(problems: str) -> None:
    check_env(MathEnv(problems, columns={"problem": "question"}))


def test_made_by_id_without_arguments_it_plays_the_embedded_problems() -> None:
    env = gymnasium.make(r3env.MATH_ID)
    inner = env.unwrapped
    assert isinstance(inner, MathEnv)
    check_env(inner)
    observation, info = env.reset(seed=1)
    query = inner.query(info["uid"])
    assert observation.startswith(query.problem)
    _, reward, terminated, truncated, info = env.step(f"\\boxed{{{query.answer}}}")
    assert (reward, terminated, truncated, info["verdict"]) == (1.0, True, False, "equal")


def test_embedded_heldout_problems_are_other_problems() -> None:
    training, heldout = MathEnv("embedded:train"), MathEnv("embedded:heldout")
    assert {training.query(uid).problem for uid in training.uids}.isdisjoint(
        heldout.query(uid).problem for uid in heldout.uids
    )


def test_made_by_id_with_arguments(problems: str) -> None:
    env = gymnasium.make(r3env.MATH_ID, data=problems, columns={"problem": "question"}, max_turns=2)
    observation, _ = env.reset(options={"uid": "half"})
    assert observation == f"Halve 1.\n\n{MATH_INSTRUCTION}"
    observation, reward, terminated, _, info = env.step("It is \\boxed{2}.")
    assert (observation, reward, terminated) == (REFLECTION_GUIDANCE, 0.0, False)
    assert info == {"uid": "half", "correct": False, "verdict": "different", "answer": "2"}
    _, reward, terminated, _, info = env.step("<think>again</think> It is \\boxed{0.5}.")
    assert (reward, terminated, info["correct"]) == (1.0, True, True)


def test_an_empty_instruction_leaves_the_problem_alone(problems: str) -> None:
    env = MathEnv(problems, columns={"problem": "question"}, instruction="")
    assert env.reset(options={"uid": "sum"})[0] == "Add 1 and 2."


def test_the_guidance_never_holds_the_answer(problems: str) -> None:
    env = MathEnv(problems, columns={"problem": "question"})
    observation, info = env.reset(options={"uid": "half", "failed_attempt": "\\boxed{7}"})
    assert observation == REFLECTION_GUIDANCE
    assert "frac" not in observation + str(info)


def test_a_hopeless_answer_meets_the_environments_own_deadline(problems: str) -> None:
    env = MathEnv(problems, columns={"problem": "question"}, grading_timeout_s=0.5)
    env.reset(options={"uid": "sum"})
    _, reward, _, _, info = env.step("\\boxed{9^{9^9}}")
    assert (reward, info["verdict"]) == (0.0, "timeout")


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="grading_timeout_s"):
        MathEnv(grading_timeout_s=0)
    with pytest.raises(ValueError, match="max_turns"):
        MathEnv(max_turns=-1)


def test_hints_are_kept_where_rows_have_them(tmp_path: Path) -> None:
    rows = [{"uid": "a", "problem": "1+1", "answer": "2", "hints": ["count"], "note": "easy"}]
    rows += [{"uid": "b", "problem": "1+2", "answer": "3"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = MathEnv(str(tmp_path / "rows.jsonl"))
    assert [env.query(uid).info for uid in ("a", "b")] == [{"hints": ["count"]}, {}]


def test_the_embedded_problems_have_eight_levels_of_hints_that_end_at_the_answer() -> None:
    env = MathEnv()
    for query in env.queries.values():
        levels = query.info["hints"]
        assert len(levels) == 8 and levels[-1].endswith(f"={query.answer}")
        added, taken = levels[3].split()
        left = [eval(side.partition("=")[0]) - int(side.partition("=")[2]) for side in (added, taken)]
        assert left == [0, 0] and eval(f"{added.partition('=')[2]}-{taken.partition('=')[2]}") == int(query.answer)
        assert all(longer.startswith(shorter) for shorter, longer in zip(levels[4:], levels[5:], strict=False))
    assert not any(query.info for query in MathEnv("embedded:heldout").queries.values())

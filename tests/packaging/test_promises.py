"""`make test` leaves out what is marked slow, and no promise: one test stands for each."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PROMISES = {
    "advantages are Equation 3": "maths/test_advantages.py::test_is_equation_3_with_a_floor",
    "methods are their formulas": "family/test_formulas.py::test_a_preset_trains_by_its_papers_formula",
    "a step is a plain recomputation's": (
        "learner/test_loss_and_gradient.py::test_loss_and_gradient_are_those_of_a_plain_recomputation"
    ),
    "learners are as one": "sharding/test_learners_as_one.py::test_gradients_are_one_learners",
    "R³ switched off is GRPO": (
        "family/test_whole_runs.py::test_with_all_switches_off_it_is_grpo_bit_for_bit_and_says_so_in_every_tag"
    ),
    "the same seed, the same numbers": "training/test_training.py::test_same_seed_same_numbers",
    "a run is resumed exactly": "training/test_training.py::test_a_resumed_run_trains_as_the_uninterrupted_one",
    "so is one that was killed": (
        "command_line/test_killed.py::test_killed_at_any_moment_and_again_it_becomes_the_run_that_was_never_killed"
    ),
    "vLLM rolls out": "rollout/test_vllm_engine.py::test_three_steps_through_two_vllm_actors",
    "answers are graded correctly": "r3env/test_grading_corpus.py::test_verdicts",
    "an answer that hangs is killed": "r3env/test_grading_deadline.py::test_hopeless_answers_in_the_main_thread",
    "so is an environment": (
        "faults/test_endless_environments.py::test_a_call_that_never_returns_fails_its_episode_alone"
    ),
    "answers are never run": "r3env/test_reasoning_gym_env.py::test_no_scorer_runs_an_answer",
    "nor are files": "faults/test_untrusted_files.py::test_pickled_weights_are_refused_by_name",
    "wrong input is one line": (
        "command_line/test_exit_codes.py::test_wrong_input_is_one_line_that_names_it_and_exit_code_2"
    ),
    "imports run down": "packaging/test_layers.py::test_every_import_runs_down",
}


@pytest.mark.parametrize("promise", PROMISES)
def test_the_test_of_a_promise_is_there_and_not_slow(promise):
    file, _, name = PROMISES[promise].partition("::")
    module = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    test = next((node for node in module if isinstance(node, ast.FunctionDef) and node.name == name), None)
    assert test is not None, f"{file} has no such test any more; name the one that keeps the promise"
    of_the_file = [node for node in module if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    marks = [ast.unparse(node) for node in (*of_the_file, *test.decorator_list)]
    assert not any(word in mark for mark in marks for word in ("slow", "skip", "xfail"))

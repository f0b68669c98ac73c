"""`r3env/ReasoningGym-v0`."""

import inspect
import re
import time
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import r3env

reasoning_gym = pytest.importorskip("reasoning_gym")

from r3env.core import Reason, Verdict  # noqa: E402
from r3env.envs.reasoning_gym import (  # noqa: E402
    TAGGED_REFLECTION_GUIDANCE,  # noqa: E402
    ReasoningGymEnv,
    extract_tagged_answer,
)
from r3env.envs.reasoning_gym_scoring import EVALUATING, may_be_scored  # noqa: E402

TASKS = sorted(reasoning_gym.factory.DATASETS)
# The library gives no reference answer of these: there are many right ones, or only its scorer knows.
WITHOUT_REFERENCE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not having a spec")
@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_played(task: str) -> None:
    env = ReasoningGymEnv(task=task, size=2, seed=11)
    check_env(env)
    uid = env.uids[0]
    query = env.query(uid)
    observation, info = env.reset(options={"uid": uid})
    assert observation.startswith(query.problem) and info == {"uid": f"{task}/11/0"}
    if task not in WITHOUT_REFERENCE:
        assert env.verify(query, env.reference_response(query)).correct


def test_the_same_uid_is_the_same_problem_in_every_environment() -> None:
    first, second = (ReasoningGymEnv(task="family_relationships", size=20, seed=5) for _ in range(2))
    other = ReasoningGymEnv(task="family_relationships", size=20, seed=6)
    assert [first.query(uid) for uid in first.uids[::-1]] == [second.query(uid) for uid in second.uids][::-1]
    assert first.queries is second.queries
    assert {first.query(uid).problem for uid in first.uids} != {other.query(uid).problem for uid in other.uids}
    assert set(first.uids).isdisjoint(other.uids)


def test_nothing_is_generated_before_it_is_asked_for() -> None:
    started = time.perf_counter()
    env = ReasoningGymEnv(task="rubiks_cube", size=1_000_000)
    assert len(env.queries) == 1_000_000
    assert env.query("rubiks_cube/0/999999").problem
    assert time.perf_counter() - started < 120, "a million problems take hours"


def test_partial_credit_is_the_reward_and_a_threshold_makes_it_correct() -> None:
    def step(threshold: float, answer: str, *, partial_credit: bool = True) -> tuple[float, bool, str]:
        env = ReasoningGymEnv(task="countdown", size=5, threshold=threshold, partial_credit=partial_credit)
        env.reset(options={"uid": "countdown/0/0"})
        _, reward, terminated, truncated, info = env.step(f"<answer>{answer}</answer>")
        assert terminated and not truncated
        return reward, info["correct"], info["verdict"]

    assert step(1.0, "1+1") == (0.05, False, "different")
    assert step(0.05, "1+1") == (0.05, True, "equal")
    assert step(1.0, "") == (0.0, False, "no_answer")
    assert step(1.0, "1+1", partial_credit=False) == (0.0, False, "different")
    assert step(0.05, "1+1", partial_credit=False) == (1.0, True, "equal")


def test_a_scorer_that_never_returns_is_killed() -> None:
    env = ReasoningGymEnv(task="countdown", size=5, grading_timeout_s=1.0)
    env.reset(options={"uid": "countdown/0/0"})
    _, reward, _, _, info = env.step("<answer>9**9**9**9</answer>")
    assert (reward, info["verdict"]) == (0.0, "timeout")
    env.grading_timeout_s = 60.0
    assert env.verify(env.query("countdown/0/0"), "<answer>1+1</answer>").reason == "different"


def test_a_scorer_that_raises_finds_the_answer_wrong() -> None:
    env = ReasoningGymEnv(task="prime_factorization", size=1)
    env.reset(seed=0)
    assert env.step("<answer>no idea }{</answer>")[1:3] == (0.0, True)


def test_every_scorer_that_evaluates_is_known() -> None:
    runs_code = re.compile(r"\b(?:eval|exec|compile|parse_expr|sympify|simplify|S)\((.*)\)")
    found = {
        task
        for task in TASKS
        for called in runs_code.findall(inspect.getsource(reasoning_gym.factory.DATASETS[task][0].score_answer))
        if called != 'entry["answer"]'  # the library's own
    }
    assert found == EVALUATING


ATTACKS = {
    "system": "__import__('os').system('touch {file}')",
    "forged": """[__import__('os').write(n, b'{{"score": 1.0}}') for n in range(3, 30)] and open('{file}', 'w')""",
    "pickled": "__import__('os').write(3, __import__('pickle').dumps((True, open('{file}', 'w').name)))",
    "listed": "[__import__('os').system('touch {file}')]",
    "lambda": "(lambda: open('{file}', 'w'))()",
    "attribute": "().__class__.__base__.__subclasses__()[open('{file}', 'w').fileno()]",
    "string": "S('open(\\'{file}\\', \\'w\\')')",
    "symbol": "x.__class__.__init__.__globals__['__builtins__']['open']('{file}', 'w')",
}


@pytest.mark.parametrize("task", TASKS)
def test_no_scorer_runs_an_answer(task: str, tmp_path: Path) -> None:
    env = ReasoningGymEnv(task=task, size=1)
    query = env.query(env.uids[0])
    file = tmp_path / "F"
    honest = env.verify(query, "<answer>no idea</answer>")
    for attack in ATTACKS.values():
        verdict = env.verify(query, f"<answer>{attack.format(file=file)}</answer>")
        assert not file.exists()
        if task in EVALUATING:
            assert verdict == Verdict(False, Reason.DIFFERENT, 0.0)
        assert (verdict.score or 0.0) <= max(honest.score or 0.0, 0.05) or task == "game_of_life_halting"


def test_nor_does_a_mixture_of_tasks(tmp_path: Path) -> None:
    env = ReasoningGymEnv(task="composite", size=3, config={"datasets": [{"name": "countdown"}]})
    for uid in env.uids:
        query = env.query(uid)
        for attack in ATTACKS.values():
            assert env.verify(query, f"<answer>{attack.format(file=tmp_path / 'F')}</answer>").score == 0.0
        assert env.verify(query, env.reference_response(query)).correct
    assert not (tmp_path / "F").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(EVALUATING))
def test_right_answers_reach_the_scorers_that_evaluate(task: str) -> None:
    env = ReasoningGymEnv(task=task, size=60, seed=3)
    for query in env.queries.values():
        assert may_be_scored(task, {"answer": query.answer}, query.answer)
        assert may_be_scored(task, {"answer": query.answer}, f" {query.answer}\n")


@pytest.mark.parametrize(
    ("task", "answer", "passes"),
    [
        ("countdown", "(1 + 2)*3 - 4/5", True),
        ("countdown", "9**9**9", True),
        ("countdown", "x + 1", False),
        ("countdown", "sqrt(4)", False),
        ("countdown", "1..real", False),
        ("countdown", "1.real", False),
        ("countdown", "١ + 1", False),
        ("countdown", "1+" * 1000 + "1", False),
        ("simple_integration", "ln(x) + atan (x/2)*E + C", True),
        ("simple_integration", "Integral(x, x)", False),
        ("simple_integration", "x (1)", False),
        ("simple_integration", "N(1)", False),
        ("simple_integration", "eval(x)", False),
        ("simple_integration", "lambda x: x", False),
        ("simple_integration", "x.is_real", False),
        ("simple_integration", "ｅｖａｌ(x)", False),
        ("simple_integration", "__x__", False),
        ("n_queens", "[['Q', '_'], ['_', 'Q']]", True),
        ("n_queens", "[x for x in 'Q']", False),
        ("n_queens", "[['Q'], open('F')]", False),
        ("spiral_matrix", "[1, -2, 3]", True),
        ("spiral_matrix", "oracle_answer.split()", False),
        ("spiral_matrix", "[" + "1" * 1900 + "x]", False),
        ("string_insertion", "oracle_answer", False),
        ("string_insertion", '["A", "B"]', True),
        ("string_insertion", "[f'{oracle_answer}']", False),
        ("chain_sum", "__import__('os')", True),  # its scorer compares texts
    ],
)
def test_what_the_scorers_that_evaluate_may_have(task: str, answer: str, passes: bool) -> None:
    assert may_be_scored(task, {"answer": "1"}, answer) is passes


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>7</answer>", "7"),
        ("<answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
        ("<answer>6</answer> no: <answer>7</answer>", "7"),
        ("<think><answer>6</answer></think><answer>7</answer>", "7"),
        ("thinking <answer>6</answer></think> I do not know", None),
        ("<think><answer>6</answer>", None),
        ("<answer>7", None),
        ("7</answer>", None),
        ("<answer> </answer>", None),
        ("\\boxed{7}", None),
    ],
)
def test_the_answer_is_what_the_last_tags_after_the_thinking_hold(response: str, answer: str | None) -> None:
    assert extract_tagged_answer(response) == answer


def test_levels_of_the_curriculum_and_configuration() -> None:
    def problems(**arguments: object) -> list[str]:
        env = ReasoningGymEnv(task="chain_sum", size=30, **arguments)  # type: ignore[arg-type]
        return [env.query(uid).problem for uid in env.uids]

    def terms(texts: list[str]) -> float:
        return sum(text.count(" + ") + text.count(" - ") for text in texts)

    assert terms(problems(level=0)) < terms(problems(level=3)) <= terms(problems(level=99))
    assert all(text.count(" + ") + text.count(" - ") == 1 for text in problems(config={"min_terms": 2, "max_terms": 2}))
    env = ReasoningGymEnv(task="chain_sum", level=2)
    assert env.uids[0] == "chain_sum/level2/0/0" and env.query(env.uids[0]).level == "2"


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted({*reasoning_gym.factory.CURRICULA} - {"knight_swap"}))
def test_every_curriculum_has_its_lowest_level(task: str) -> None:
    env = ReasoningGymEnv(task=task, size=1, level=0)
    assert env.query(env.uids[0]).problem


def test_a_level_that_the_library_itself_refuses_is_named() -> None:
    with pytest.raises(ValueError, match="reasoning-gym task 'knight_swap', level 0: min_nodes must be >= 6"):
        ReasoningGymEnv(task="knight_swap", level=0).uids  # noqa: B018


def test_several_tasks_and_held_out_ones_by_data() -> None:
    env = ReasoningGymEnv(task=["chain_sum", "leg_counting"], size=2)
    assert env.uids == ["chain_sum/0/0", "chain_sum/0/1", "leg_counting/0/0", "leg_counting/0/1"]
    assert ReasoningGymEnv("chain_sum,leg_counting#size=2").uids == env.uids
    held_out = ReasoningGymEnv("leg_counting#seed=9,size=3,level=1", size=2)
    assert held_out.uids == [f"leg_counting/level1/9/{number}" for number in range(3)]


def test_made_by_id_with_arguments_and_a_second_turn() -> None:
    env = gymnasium.make(r3env.REASONING_GYM_ID, data="chain_sum#size=3", max_turns=2)
    env.reset(options={"uid": "chain_sum/0/1"})
    observation, reward, terminated, _, _ = env.step("<answer>no</answer>")
    assert (observation, reward, terminated) == (TAGGED_REFLECTION_GUIDANCE, 0.0, False)
    inner = env.unwrapped
    assert isinstance(inner, ReasoningGymEnv)
    assert env.step(inner.reference_response(inner.query("chain_sum/0/1")))[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "chain_smu"}, "reasoning-gym has no task 'chain_smu'; the nearest is 'chain_sum'"),
        ({"task": []}, "name one or more tasks"),
        ({"task": ["chain_sum", "chain_sum"]}, "each once"),
        ({"config": {"max_term": 3}}, "its configuration has no field 'max_term'; the nearest is 'max_terms'"),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "reasoning-gym task 'chain_sum': max_terms"),
        ({"task": "acre", "level": 1}, "it has no curriculum; leave level out"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"level": -1}, "level must be"),
        ({"threshold": 0}, "threshold must be"),
        ({"grading_timeout_s": 0}, "grading_timeout_s"),
        ({"config": {"seed": 3}}, "config: 'seed' is an argument of its own; write seed=3 beside config"),
        ({"config": {"size": 3}}, "write size=3 beside config"),
        ({"data": "chain_sum", "task": "leg_counting"}, "both data='chain_sum' and task='leg_counting' name tasks"),
        ({"data": "chain_sum#sede=1"}, "unknown key 'sede'; the nearest is 'seed'"),
        ({"data": "chain_sum#size=many"}, "size must be a whole number"),
    ],
)
def test_mistakes_are_named_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ReasoningGymEnv(**arguments).uids  # type: ignore[arg-type]  # noqa: B018
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "uid", ["chain_sum/0/3", "chain_sum/0/01", "chain_sum/0/-1", "chain_sum/0/", "chain_sum", "x/0/1"]
)
def test_unknown_uids_are_refused(uid: str) -> None:
    with pytest.raises(ValueError, match="unknown uid"):
        ReasoningGymEnv(size=3).reset(options={"uid": uid})

"""`python -m r3env.check` and `python -m r3env.inspect`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

import r3env
from r3env.check import main as check
from r3env.inspect import main as inspect

SAMPLES = Path(__file__).parent / "samples"


OWN_ENV = """
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class E(VerifiableEnv):
    def __init__(self, breaks=""):
        super().__init__()
        self.breaks = breaks
        if breaks == "make":
            raise KeyError("m")

    def load_queries(self):
        if self.breaks == "load":
            raise SystemExit(3)
        return [Query("1", "1+1", "2")]

    def prompt(self, query):
        return 3 if self.breaks == "prompt" else super().prompt(query)

    def reset(self, **arguments):
        if self.breaks == "reset":
            raise RuntimeError("no server")
        return super().reset(**arguments)

    def verify(self, query, response):
        if self.breaks == "verify":
            raise KeyError("v")
        return Verdict(True, Reason.EQUAL, float("nan"))


gymnasium.register("E-v0", E)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules `own_env`, which registers E-v0, and `broken_env`, which cannot be imported."""
    (tmp_path / "own_env.py").write_text(OWN_ENV)
    (tmp_path / "broken_env.py").write_text("x\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    gymnasium.registry.pop("E-v0", None)
    sys.modules.pop("own_env", None)


@pytest.fixture
def problems(tmp_path: Path) -> str:
    path = tmp_path / "problems.jsonl"
    rows = [{"problem": f"What is {i}?", "answer": str(i)} for i in range(300)]
    rows[7]["answer"] = "\\frac{1}{2"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_check_passes_good_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--data", str(SAMPLES / "gsm8k.jsonl"), "--preset", "gsm8k"]) == 0
    out = capsys.readouterr().out
    assert "3 queries from 3 rows" in out
    assert "3 of 3 reference answers pass their own grader, 0 fail" in out


def test_check_reports_answers_that_fail(problems: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--data", problems]) == 1
    out = capsys.readouterr().out
    assert "answer '\\\\frac{1}{2': What is 7?" in out
    assert "299 of 300 reference answers pass their own grader, 1 fail" in out
    assert check(["--data", problems, "--limit", "5"]) == 0
    assert check(["--data", problems, "--column", "level=answer", "--show", "0"]) == 1
    assert "… and 1 more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file; fix:"),
        (["--data", "{problems}", "--column", "problem=question"], "row 1: no column 'question'; fix:"),
        (["--data", "{problems}", "--column", "problem"], "--column problem: not of the form OURS=THEIRS"),
        (["--data", "{problems}", "--preset", "gsm9k"], "there is no preset 'gsm9k'; fix: one of"),
        (["--data", "nowhere.jsonl", "--timeout-s", "0"], "--timeout-s must be a positive number of seconds, it is 0"),
        (["--data", "nowhere.jsonl", "--timeout-s", "nan"], "--timeout-s must be a positive number of seconds"),
        (["--data", ""], "--data is empty; fix:"),
        (["--data", "{problems}", "--max-prompt-length", "3"], "leaves no queries"),
    ],
)
def test_check_refuses_wrong_input_in_one_line(
    problems: str, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([argument.format(problems=problems) for argument in arguments]) == 2
    err = capsys.readouterr().err.strip()
    assert line in err and len(err.splitlines()) == 1


def test_check_as_a_program(problems: str) -> None:
    command = [sys.executable, "-m", "r3env.check", "--data", problems]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(r3env.__file__).parents[1])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        1,
        "299 of 300 reference answers pass their own grader, 1 fail",
    )
    assert done.stderr == ""
    done = subprocess.run([*command[:-1], "x.csv"], capture_output=True, text=True, cwd=Path(r3env.__file__).parents[1])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    done = subprocess.run(command[:-2], capture_output=True, text=True, cwd=Path(r3env.__file__).parents[1])
    assert done.returncode == 2 and "--data" in done.stderr.splitlines()[-1]


def test_inspect_shows_what_the_policy_sees(problems: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(["--data", problems, "--n", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("What is") == 3 and out.count("within \\boxed{}") == 3 and "<<<" not in out


def test_inspect_shows_what_the_grader_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(["--uid", "train-000", "--answer", "\\boxed{7}", "--gold", "--option", "max_turns=2"]) == 0
    out = capsys.readouterr().out
    assert ">>> \\boxed{10}\n<<< equal correct=True reward=1 (the end)" in out
    assert ">>> \\boxed{7}\n<<< different correct=False reward=0\nThe answer above is not correct." in out
    assert "<<< different correct=False reward=0 (the end)" in out


def test_inspect_maps_columns_as_training_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "gold": "2"}\n')
    columns = ["--column", "problem=question", "--column", "answer=gold"]
    assert inspect(["--data", str(tmp_path / "rows.jsonl"), *columns, "--n", "1", "--gold"]) == 0
    out = capsys.readouterr().out
    assert "1+1" in out and ">>> \\boxed{2}\n<<< equal correct=True" in out


def test_a_reader_that_has_seen_enough_ends_inspect_in_silence() -> None:
    command = f"{sys.executable} -m r3env.inspect --n 1000 | head -n 1; exit ${{PIPESTATUS[0]}}"
    folder = Path(r3env.__file__).parents[1]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect_takes_any_environment(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", r3env.REASONING_GYM_ID, "--data", "leg_counting#size=4", "--n", "2", "--gold"]
    assert inspect(arguments) == 0
    assert capsys.readouterr().out.count("equal correct=True reward=1") == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--env", "r3env/Mth-v0"], "r3env/Mth-v0: "),
        (["--env", "no_such_module:X-v0"], "no_such_module:X-v0: there is no module no_such_module; fix: start from"),
        (["--env", "broken_env:E-v0"], "importing broken_env fails: NameError: name 'x' is not defined (broken_env.py"),
        (["--env", "own_env:F-v0"], "own_env:F-v0: is not registered; the nearest is 'own_env:E-v0'"),
        (["--env", "own_env:E-v0", "--option", "breaks=make"], "cannot be made: KeyError: 'm' (own_env.py, line"),
        (["--env", "own_env:E-v0", "--option", "breaks=load"], "its problems cannot be read: SystemExit: 3 (own_env"),
        (["--env", "own_env:E-v0", "--option", "breaks=prompt"], "prompt of query '1' must be text, it is of type int"),
        (["--env", "own_env:E-v0", "--option", "breaks=reset"], "reset: RuntimeError: no server (own_env.py, line"),
        (["--env", "own_env:E-v0", "--option", "breaks=verify", "--gold"], "step: KeyError: 'v' (own_env.py, line"),
        (["--env", "own_env:E-v0", "--option", "breaks=nan", "--answer", "1"], "reward nan is not a finite number"),
        (["--data", "{problems}", "--column", "problem"], "--column problem: not of the form OURS=THEIRS"),
        (["--data", "{problems}", "--column", "problem=q"], "no column 'q'; fix: the nearest column is 'problem'"),
        (["--data", "{unnamed}"], "map it with --column answer=NAME"),
        (["--env", "own_env:E-v0", "--column", "problem=q"], "unknown option 'columns'"),
        (["--option", "max_turns=true"], "max_turns must be a whole number of at least 1, it is True"),
        (["--option", "instruction=3"], "instruction must be text, it is 3"),
        (["--option", "grading_timeout_s=x"], "grading_timeout_s must be a number of seconds, it is 'x'"),
        (["--option", "columns=x"], "columns must map our names to those of the data"),
        (["--env", "CartPole-v1"], "CartPole-v1: is not a r3env.core.VerifiableEnv"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--uid", "train-9999"], "unknown uid 'train-9999'; the nearest is"),
        (["--option", "max_turns"], "not of the form KEY=VALUE"),
        (["--option", "max_trns=2"], "r3env/Math-v0: unknown option 'max_trns'; the nearest is 'max_turns'"),
        (
            ["--env", "examples.guess_number:GuessNumber-v0", "--option", "instrction=x"],
            "unknown option 'instrction'; the nearest is 'instruction'",
        ),
        (
            ["--env", r3env.MIXTURE_ID, "--option", "max_trns=2"],
            "r3env/Math-v0 cannot be made: unknown option 'max_trns'; the nearest is 'max_turns'",
        ),
        (["--env", r3env.MIXTURE_ID, "--option", "environments=[1]"], "environments must map names of yours"),
        (["--data", ""], "--data is empty; fix:"),
        (["--option", "max_turns=0"], "r3env/Math-v0: max_turns must be a whole number of at least 1, it is 0"),
    ],
)
@pytest.mark.usefixtures("modules")
def test_inspect_refuses_wrong_input_in_one_line(
    arguments: list[str], line: str, problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unnamed.jsonl").write_text('{"problem": "p", "gold": "1"}\n')
    names = {"problems": problems, "unnamed": str(tmp_path / "unnamed.jsonl")}
    assert inspect([names.get(one.strip("{}"), one) for one in arguments]) == 2
    err = capsys.readouterr().err.strip()
    assert line in err and len(err.splitlines()) == 1
    assert "environment creator" not in err and "kwargs" not in err


@pytest.mark.parametrize("number", ["0", "-1", "1001", "9" * 5000, "many"])
def test_inspect_shows_a_number_of_episodes(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        inspect(["--n", number])
    last = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2 and "--n: must be a whole number from 1 to 1000" in last


def test_inspect_refuses_a_seed_below_zero(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        inspect(["--seed=-1"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2 and "--seed: must be a whole number of at least 0, it is '-1'" in last


@pytest.mark.parametrize("number", ["-1", "few"])
def test_check_shows_a_number_of_failures(problems: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        check(["--data", problems, "--show", number])
    assert caught.value.code == 2
    assert "--show: must be a whole number of at least 0" in capsys.readouterr().err.splitlines()[-1]

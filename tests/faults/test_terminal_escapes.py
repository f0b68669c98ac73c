"""What steers a terminal, or turns the direction of a line, is shown, whoever wrote it: rows, answers, names."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.evaluation import console as evaluate_console
from algorithms.evaluation.no_answer import _ending
from algorithms.evaluation.results import open_results
from algorithms.preflight.check import check
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.report import main as report
from algorithms.reporting.page import inline_json, render
from algorithms.rollout.failures import one_line
from algorithms.train.closing_table import print_closing_table
from algorithms.train.rebuild import main as rebuild
from algorithms.train.run_location import check_place
from algorithms.utils.progress import Counter, Progress
from algorithms.utils.statistics import Score
from r3env import check as r3env_check
from r3env import inspect as r3env_inspect
from r3env.data.sources import DataError
from r3env.printable import printable
from tests.report.runs import make_run

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202egnp\u2066\u200b\x08\x7f[/red]"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\x9b1m\u202egnp\u2066\u200b\x08\x7f[/red]"


def assert_harmless(text):
    assert SHOWN in text, text
    assert not [character for character in HOSTILE[:-6] if not character.isprintable() and character in text]


def test_what_is_nothing_to_see_becomes_an_escape_and_text_stays():
    assert printable(HOSTILE) == SHOWN
    assert printable("a\rb\ud800\U000e0001") == r"a\rb\ud800\U000e0001"
    for text in (
        "one\n\ttwo",
        "\u00e9 \u4e2d\u6587 \u05d0\u05d1 \u0645",
        "\U0001f468\u200d\U0001f469",
        "\u00a0\u3000",
        "\\frac",
    ):
        assert printable(text) == text


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"uid": f"u{HOSTILE}", "problem": f"p{HOSTILE}", "answer": f"a{HOSTILE}"}) + "\n")
    return file


def test_inspect(rows, capsys):
    arguments = [
        "--env",
        "r3env/Math-v0",
        "--data",
        str(rows),
        "--n",
        "1",
        "--gold",
        "--answer",
        f"\\boxed{{{HOSTILE}}}",
    ]
    assert r3env_inspect.main(arguments) == 0
    output = capsys.readouterr().out
    assert output.count(SHOWN) >= 4
    assert_harmless(output)


def test_check_of_references(rows, capsys):
    rows.write_text(rows.read_text().replace('"a\\u001b', '"{a\\u001b'))  # nothing can be graded as this
    r3env_check.main(["--data", str(rows), "--show", "3", "--timeout-s", "1"])
    read = capsys.readouterr()
    assert_harmless(read.out)
    assert "\x1b" not in read.err


def test_errors(tmp_path, capsys):
    assert_harmless(str(ConfigError(f"run.name: {HOSTILE}")))
    assert_harmless(str(DataError.at("rows", f"no column {HOSTILE}", "name one")))
    assert_harmless(one_line(f"ValueError: {HOSTILE}"))
    assert_harmless(_ending(HOSTILE))
    assert r3env_inspect.main(["--env", "r3env/Math-v0", "--data", f"{HOSTILE}.jsonl"]) == 2
    assert_harmless(capsys.readouterr().err)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({HOSTILE: 1, "problem": "p"}) + "\n")
    assert r3env_check.main(["--data", str(file)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_runs_name():
    with pytest.raises(ConfigError, match="run.name: .* can't name a folder"):
        check_place("runs", "a\x1b[2J")
    with pytest.raises(ConfigError, match="run.name: .* can't name a folder"):
        check_place("runs", "a\u202eb")


def test_check_of_a_configuration(rows):
    config = R3GRPOConfig().environment(data=str(rows)).rl_module(model="embedded:tiny")
    lines = check(config.env_runners(max_response_tokens=16), RunSettings(name="mine", steps=1)).lines
    assert_harmless("\n".join(lines))


def test_tables_of_an_evaluation(tmp_path, capsys):
    score = Score(0.5, 0.25, 0.75)
    one = {
        "problems": 4,
        "samples": 2,
        "ungraded": 1,
        "scores": {"pass@1": score},
        "levels": {HOSTILE: score, "2": score},
    }
    evaluate_console.print_scores({f"b{HOSTILE}": one}, tmp_path, [f"note {HOSTILE}"])
    output = capsys.readouterr().out
    assert_harmless(output)
    assert output.count(r"\x1b]0;owned") >= 5


def test_progress_and_the_closing_table(tmp_path):
    stream = io.StringIO()
    Progress(2, stream=stream).message(HOSTILE)
    with Counter(HOSTILE, stream=stream):
        pass
    assert stream.getvalue().count(SHOWN) == 2
    stream = io.StringIO()
    summary = {"eval": {"before": {"pass@1": 0.1}, "after": {"pass@1": 0.2}}}
    print_closing_table(summary, tmp_path, problems=HOSTILE, console=Console(file=stream, width=200))
    assert_harmless(stream.getvalue())


WARNS = """
import logging, sys
from algorithms.utils.process import native_stderr_held_back
from r3env.streams import guard_streams

guard_streams()
logger = logging.getLogger("r3env.data.loading")
logger.warning("column %s", sys.argv[1])
with native_stderr_held_back():
    logger.warning("column %s", sys.argv[1])
"""


def test_warnings_of_a_command():
    ended = subprocess.run(
        [sys.executable, "-c", WARNS, HOSTILE], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120
    )
    assert ended.stderr.count(f"column {SHOWN}\n") == 2
    assert_harmless(ended.stderr)


def test_the_page_of_a_report():
    assert_harmless(json.loads(inline_json({HOSTILE: [HOSTILE, 1, None, True]}))[SHOWN][0])
    assert "\x1b" not in render({}, HOSTILE) and "\u202e" not in render({"a": HOSTILE}, "")


@pytest.mark.parametrize("command", ["report", "rebuild", "evaluate"])
def test_paths_that_commands_print(command, tmp_path, capsys):
    folder = tmp_path / "a\x1b[2J\u202eb"
    run = make_run(folder)
    if command == "evaluate":
        for _ in range(2):
            open_results(folder / "out", "run: {seed: 0}\n", {"benchmarks": {}, "model": None}, complete=True)
    else:
        assert {"report": report, "rebuild": rebuild}[command]([str(run)]) == 0
    output = "".join(capsys.readouterr())
    assert r"a\x1b[2J\u202eb" in output and "\x1b" not in output and "\u202e" not in output

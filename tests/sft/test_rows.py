"""The rows of a supervised start: a rollout's prompt, and a solution that the environment grades as correct."""

import dataclasses

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.finetuning.config import SFTConfig
from algorithms.finetuning.rows import make_environment, read_rows
from algorithms.finetuning.trainer import IGNORED, to_dataset
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.types import Prompt, Request, Sampling
from algorithms.rollout.workers import inference_workers
from r3env.data.references import worked_steps
from r3env.reasoning import response_text

from .conftest import BASE, solved, write

GSM8K = [
    {
        "question": "How many clips?",
        "answer": "In April 48/2 = <<48/2=24>>24.\nAltogether 48+24 = <<48+24=72>>72.\n#### 72",
    },
    {"question": "How much?", "answer": "It is $1,000 + $234 = $<<1000+234=1234>>1,234\n#### 1,234"},
]


def configured(*overrides, of=()):
    config, _ = load([str(file) for file in of] or None, [*BASE, *overrides], SFTConfig)
    return config


def rows_of(config):
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model))
    return read_rows(config, make_environment(config), tokenizer, context_length(module)), tokenizer


def texts(rows, tokenizer):
    return [response_text(tokenizer, row.response.tolist()) for row in rows.train]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("environment.system=Be brief.", "environment.instruction=Reason."),
        ("environment.answer=last_number", "environment.instruction=null", "rl_module.model=moody"),
    ],
)
def test_a_prompt_has_the_tokens_of_a_rollouts(data, settings, tmp_path):
    if "rl_module.model=moody" in settings:  # its template reads a variable
        tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
        tokenizer.chat_template += "{% if add_generation_prompt %}{{ mood }}{% endif %}"
        moody = tmp_path / "moody"
        moody.mkdir()
        for file in ("config.json", "generation_config.json", "model.safetensors"):
            (moody / file).symlink_to(f"{resolve_model('embedded:tiny')}/{file}")
        tokenizer.save_pretrained(moody)
        settings = (*settings[:-1], f"rl_module.model={moody}", "rl_module.chat_template_kwargs.mood=Hm.")
    config = configured(f"environment.data={data}", "sft.held_out=0", *settings)
    rows, _ = rows_of(config)
    assert len(rows.train) == len(solved())
    some = rows.train[::40]
    with inference_workers(config) as workers:
        sampling = dataclasses.replace(Sampling.of(config.env_runners_settings), max_response_tokens=1)
        rollouts = workers.rollout([Request(n, Prompt(row.uid), n, n, sampling) for n, row in enumerate(some)])
    for row, rollout in zip(some, rollouts, strict=True):
        assert rollout.error is None and row.uid == rollout.uid
        assert row.prompt.tolist() == rollout.tokens[: rollout.prompt_length].tolist()


def test_the_loss_is_on_the_solution_and_the_token_that_ends_the_turn(data):
    rows, tokenizer = rows_of(configured(f"environment.data={data}", "environment.answer=last_number"))
    row, entry = rows.train[0], to_dataset(rows.train)[0]
    assert entry["input_ids"] == [*row.prompt.tolist(), *row.response.tolist()]
    assert entry["labels"] == [IGNORED] * len(row.prompt) + row.response.tolist()
    assert tokenizer.decode(entry["labels"][-1]) == "<|end|>"
    assert tokenizer.decode(row.response).startswith("So: ")


@pytest.mark.parametrize(
    ("form", "last"), [("box", "\\boxed{72}"), ("after:####", "#### 72"), ("last_number", "Altogether 48+24 = 72.")]
)
def test_gsm8ks_marks_become_worked_steps_and_the_answer_in_the_form_that_is_asked_for(tmp_path, form, last):
    file = write(tmp_path / "gsm8k.jsonl", GSM8K)
    config = configured(f"environment.data=preset:gsm8k:{file}", f"environment.answer={form}", "sft.max_tokens=200")
    first, second = texts(*rows_of(config))
    assert first.splitlines()[0] == "In April 48/2 = 24." and first.splitlines()[-1] == last
    assert "<<" not in first + second and "$1,000 + $234 = $1,234" in second


@pytest.mark.parametrize(
    ("preset", "row", "solution"),
    [
        ("svamp", {"Body": "Ann has 8.", "Question": "Half?", "Equation": "( 8.0 / 2.0 )", "Answer": 4.0}, "8 / 2 = 4"),
        (
            "svamp",
            {"Body": "Ann has 8,", "Question": "how?", "Equation": "( ( 8.0 + 2.5 ) - 1.0 )", "Answer": "9.5"},
            "( ( 8 + 2.5 ) - 1 ) = 9.5",
        ),
        ("mawps", {"question": "Half?", "expression": "8.0 / 2.0", "equation": "x=8/2", "result": "4"}, "8 / 2 = 4"),
        ("mawps", {"problem": "Half of 8?", "solution": "8 : 2 = 4", "answer": "4"}, "8 : 2 = 4"),
    ],
)
def test_an_equation_of_a_preset_becomes_a_calculation(preset, row, solution, tmp_path):
    file = write(tmp_path / "rows.jsonl", [{"ID": "chal-1", **row}])
    (found,) = texts(*rows_of(configured(f"environment.data=preset:{preset}:{file}")))
    assert found.splitlines()[0] == solution and found.splitlines()[1].startswith("\\boxed{")


def test_a_solution_without_gsm8ks_last_line_stays_as_it_is():
    assert worked_steps("cout << x >> y;\n42 ") == "cout << x >> y;\n42"
    assert worked_steps("1+1 = <<1+1=2>>2\n#### 2\n") == "1+1 = 2"


def test_solutions_are_what_the_environment_grades_as_correct_and_the_others_are_counted(tmp_path):
    rows = [
        {"problem": "1+1", "answer": "2", "way": "two: \\boxed{2}"},
        {"problem": "1+2", "answer": "3", "way": "no answer yet"},
        {"problem": "1+3", "answer": "4", "way": "wrong: \\boxed{5}"},
        {"problem": "1+4", "answer": "5", "way": ""},
        {"problem": "1+5", "answer": "6", "way": "long " * 40},
        {"problem": "<|end|>", "answer": "7", "way": "<|end|><|user|> \\boxed{7}"},
    ]
    file = write(tmp_path / "mixed.jsonl", rows)
    found, tokenizer = rows_of(configured(f"environment.data={file}", "sft.solution=way"))
    assert texts(found, tokenizer) == ["two: \\boxed{2}", "no answer yet\n\\boxed{3}", "<|end|><|user|> \\boxed{7}"]
    assert found.left_out == {
        "whose solution is graded as incorrect": 1,
        "without a solution": 1,
        "longer than 48 tokens": 1,
    }
    end = tokenizer.eos_token_id
    assert [(row.response == end).sum() for row in found.train] == [1, 1, 1], "what a text spells is no control token"
    line = found.described()
    assert line.startswith("solutions: 3 to train on, of ") and line.endswith("left out: 1 longer than 48 tokens")


def test_rows_set_aside_are_not_trained_on(data):
    rows, _ = rows_of(configured(f"environment.data={data}", "sft.held_out=7", "sft.rows=20"))
    assert len(rows.held_out) == 7 and len(rows.train) == 20
    assert not {row.uid for row in rows.held_out} & {row.uid for row in rows.train}
    rows, _ = rows_of(configured(f"environment.data={data}", "sft.held_out=1000"))
    assert len(rows.held_out) == len(solved()) // 10
    assert len({row.uid for row in [*rows.held_out, *rows.train]}) == len(solved())


def test_rows_are_set_aside_that_none_is_like_but_for_its_numbers(tmp_path):
    story = "{} has {} red apples and buys {} more of them at the old market. How many are there now?"
    rows = []
    for number in range(40):
        name = ["Ann", "Bob"][number % 2] if number < 30 else "abcdefghij"[number - 30] * 4
        problem = story.format(name, number, number + 1)
        answer = str(2 * number + 1)
        rows.append({"problem": problem, "answer": answer, "solution": f"\\boxed{{{answer}}}"})
    config = configured(f"environment.data={write(tmp_path / 'stories.jsonl', rows)}")
    found, _ = rows_of(config)
    environment = make_environment(config)
    aside = [environment.query(row.uid).problem for row in found.held_out]
    assert len(aside) == 4 and not any(problem.startswith(("Ann", "Bob")) for problem in aside)
    assert len(found.train) == 36


def test_a_prompt_that_leaves_no_room_in_the_model_is_left_out(data):
    config = configured(f"environment.data={data}")
    tokenizer, environment = load_tokenizer(resolve_model("embedded:tiny")), make_environment(config)
    whole = read_rows(config, environment, tokenizer, None)
    lengths = [len(row.prompt) + len(row.response) for row in [*whole.train, *whole.held_out]]
    fitting = read_rows(config, environment, tokenizer, max(lengths) - 1)
    longest = lengths.count(max(lengths))
    assert fitting.left_out == {"whose prompt leaves no room in the model's context": longest}


def test_without_any_usable_solution_the_counts_are_in_the_error(tmp_path):
    file = write(tmp_path / "wrong.jsonl", [{"problem": "1+1", "answer": "2", "solution": "\\boxed{3}"}])
    with pytest.raises(ConfigError, match=r"sft.solution: .*1 whose solution is graded as incorrect.*fix: name"):
        rows_of(configured(f"environment.data={file}"))

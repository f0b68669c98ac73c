"""Make a base that mostly fails alone and does better after a failed attempt, with problems to train and test it on.

    python -m benchmarks.evidence.base --task sums --rate 0.01 --out runs/bases/sums
    python -m benchmarks.evidence.base --task sums --rate 0.0005 --start runs/bases/sums --out runs/bases/sums-rare

The second starts from the first, which takes a quarter of the time and leaves all else as it was.

Writes the Hugging Face folder, `report.json` (what it can do bare and after its own failed attempt), and for sums
`train.jsonl`, `dev.jsonl` and `heldout.jsonl`; the problems of words are drawn by reasoning-gym. Minutes on one core.
"""

import argparse
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM

from benchmarks.evidence.tasks import TASKS, WORDS_PROMPT, Task
from benchmarks.evidence.teacher import Lesson, Teacher
from r3env.assets.build import ROWS, new_model, warm_start
from r3env.assets.report import Question, measure
from r3env.assets.tokenizer import build_tokenizer

# Problems of each size that is tested.
TRAINING, DEVELOPMENT, HELD_OUT = 16, 20, 50
LONG_SHARE = 0.6


def lessons(rate: float, *, goes_on: bool) -> tuple[Lesson, ...]:
    """Return the lessons: all strategies first, then first turns of which only `rate` use the fitting one."""
    ways = (rate, LONG_SHARE, 1 - LONG_SHARE - rate)
    if goes_on:
        return (Lesson(200, reflection=0.4, ways=ways),)
    return (Lesson(500, reflection=0.3, ways=(0.4, 0.4, 0.2)), Lesson(400, reflection=0.4, ways=ways))


def main() -> None:
    """Make everything and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--rate", type=float, required=True, help="share of first turns with the fitting strategy")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a base of the same task to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    task = TASKS[arguments.task]
    held_out = write_problems(task, arguments.out, arguments.seed) if task.name == "sums" else frozenset()
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (WORDS_PROMPT, "<answer>", "</answer>")])
    model = AutoModelForCausalLM.from_pretrained(arguments.start) if arguments.start else new_model(tokenizer)
    teacher = Teacher(tokenizer, task, held_out, arguments.seed)
    taught = lessons(arguments.rate, goes_on=bool(arguments.start))
    warm_start(model, [(lesson.steps, teacher.batches(lesson, ROWS)) for lesson in taught])
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    report = measure(model, tokenizer, questions(task, arguments.seed + 1), task.response_limit)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def questions(task: Task, seed: int) -> list[Question]:
    """Return fresh problems to report on, as many of each size."""
    rng = random.Random(seed)
    drawn = [(task.problem(rng, size), size) for size in task.tested for _ in range(DEVELOPMENT)]
    return [Question(one.text, partial(task.is_right, one.answer), size) for one, size in drawn]


def write_problems(task: Task, folder: Path, seed: int) -> frozenset[str]:
    """Write training, development and held-out problems, all different; return those that are not for training."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "dev": [], "heldout": []}
    for size in task.tested:
        drawn: dict[str, str] = {}
        while len(drawn) < TRAINING + DEVELOPMENT + HELD_OUT:
            problem = task.problem(rng, size)
            drawn[problem.text] = problem.answer
        texts = list(drawn)
        split = [texts[:TRAINING], texts[TRAINING:][:DEVELOPMENT], texts[TRAINING + DEVELOPMENT :]]
        for name, chosen in zip(rows, split, strict=True):
            rows[name] += [{"problem": text, "answer": drawn[text], "level": str(size)} for text in chosen]
    for name, problems in rows.items():
        lines = [json.dumps({"uid": f"{name}-{index:03d}", **row}) for index, row in enumerate(problems)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return frozenset(row["problem"] for name in ("dev", "heldout") for row in rows[name])


if __name__ == "__main__":
    main()

"""Make the embedded teacher: `python -m benchmarks.embedded_model.teacher`. A few minutes on two cores, seeded.

The embedded model, shown further problems that are all worked by running totals. It is what `embedded:teacher` names,
for on-policy distillation without another download. Writes `teacher/`, in bfloat16.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.embedded_model.build import ASSETS, ROWS, warm_start
from benchmarks.embedded_model.lessons import RESPONSE_LIMIT, Lesson, Teacher
from benchmarks.embedded_model.report import Question, measure

LESSON = Lesson(500, range(5, 17), reflection=0.2, ways=(1.0, 0.0, 0.0))


def main() -> None:
    """Make the teacher and print its accuracy on the held-out problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ASSETS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)

    rows = [json.loads(line) for line in (ASSETS / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    model: Any = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny", dtype=torch.float32)
    lessons = Teacher(tokenizer, {row["problem"] for row in rows}, arguments.seed)
    warm_start(model, [(LESSON.steps, lessons.batches(LESSON, ROWS))])
    model.to(torch.bfloat16).save_pretrained(arguments.out / "teacher")
    tokenizer.save_pretrained(arguments.out / "teacher")
    model.float()
    questions = [Question(row["problem"], row["answer"], int(row["level"])) for row in rows]
    print(json.dumps(measure(model, tokenizer, questions, RESPONSE_LIMIT), indent=1))


if __name__ == "__main__":
    main()

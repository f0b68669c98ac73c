"""Make the embedded teacher: `python -m benchmarks.embedded_model.teacher`. A few minutes on two cores, seeded.

The embedded model, shown further problems that are all worked by running totals. It is what `embedded:teacher` names,
for on-policy distillation without another download. Writes `teacher/`, in bfloat16.
"""

import json
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.embedded_model.build import ASSETS, ROWS, maker_arguments, warm_start
from benchmarks.embedded_model.lessons import RESPONSE_LIMIT, Lesson, Teacher
from benchmarks.embedded_model.report import Question, measure

LESSON = Lesson(500, range(5, 17), reflection=0.2, ways=(1.0, 0.0, 0.0))


def main() -> None:
    """Make the teacher and print its accuracy on the held-out problems."""
    arguments = maker_arguments(__doc__, seed=1)
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

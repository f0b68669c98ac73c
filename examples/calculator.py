r"""Learn to call a calculator: a tool, and a base that gives up more often than it calls.

    python -m examples.calculator runs/calculator
    python -m algorithms.grpo environment.id=r3env/Tools-v0 environment.options.tools=[examples.calculator:multiply] \
        environment.data=runs/calculator/train.jsonl evaluation.data=runs/calculator/heldout.jsonl \
        environment.instruction="''" environment.max_turns=3 rl_module.model=runs/calculator \
        env_runners.max_response_tokens=12 training.lr=1e-3 training.warmup_steps=0 run.steps=12

The first command teaches the base in half a minute on one core, and writes its folder and the problems. Watch
`tools/used` in the metrics, the share of episodes that call.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.embedded_model.build import build_tokenizer, new_model, warm_start
from benchmarks.embedded_model.lessons import Example, fill_rows
from r3env.chat import ChatFormat, first_turn, next_turns

CALL = ('<tool_call>\n{"name": "multiply", "arguments": {"a": ', ', "b": ', "}}\n</tool_call>")
WORDS = [*(f"{number:02d}" for number in range(100)), *CALL, "\\boxed{", "<|tool|>", "multiply(a, b)"]
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}"
    "{{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})"
    "{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|tool|>{{ message.content }}<|end|>"
    "{% else %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# What the template shows of `multiply`.
TOOLS = [{"type": "function", "function": {"name": "multiply", "parameters": {"properties": {"a": {}, "b": {}}}}}]
NUMBERS = range(10, 40)
LESSONS = ((200, 1.0), (60, 0.15))  # steps, and the share of first turns that call
ROWS, ROW_TOKENS = 12, 64
TRAINING, HELD_OUT = 400, 60


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


class Teacher:
    """Yields endless examples: first turns, some of which call, and how to use a result."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer, self.rng, self.form = tokenizer, random.Random(seed), ChatFormat(tools=TOOLS)

    def example(self, calling: float) -> Example:
        """Return the next example; this share of first turns calls, and the others give up."""
        a, b = self.rng.choice(NUMBERS), self.rng.choice(NUMBERS)
        prompt = first_turn(self.tokenizer, [{"role": "user", "content": f"{a}*{b}"}], self.form)
        call = self._tokens(f"{CALL[0]}{a}{CALL[1]}{b}{CALL[2]}")
        if self.rng.random() < 0.5:
            result = next_turns(self.tokenizer, call, [{"role": "tool", "content": f"{a * b}"}], self.form)
            return Example(prompt + call + result, self._tokens(f"\\boxed{{{a * b}}}"))
        return Example(prompt, call if self.rng.random() < calling else self._tokens("\\boxed{0}"))

    def batches(self, calling: float) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield endless batches."""
        while True:
            yield fill_rows(lambda: self.example(calling), ROWS, ROW_TOKENS)

    def _tokens(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


def make(folder: Path, seed: int = 0) -> None:
    """Teach the base, and write its folder with the problems.

    Args:
        folder: gets the model, `train.jsonl` and `heldout.jsonl`.
        seed: of weights, examples and problems.
    """
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(WORDS)
    tokenizer.chat_template = CHAT_TEMPLATE
    model = new_model(tokenizer)
    teacher = Teacher(tokenizer, seed)
    warm_start(model, [(steps, teacher.batches(calling)) for steps, calling in LESSONS])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rng = random.Random(seed)
    pairs = rng.sample([(a, b) for a in NUMBERS for b in NUMBERS], TRAINING + HELD_OUT)
    for name, chosen in (("train", pairs[:TRAINING]), ("heldout", pairs[TRAINING:])):
        rows = [{"uid": f"{name}-{a}x{b}", "problem": f"{a}*{b}", "answer": str(a * b)} for a, b in chosen]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Make the base in the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.folder, given.seed)


if __name__ == "__main__":
    main()

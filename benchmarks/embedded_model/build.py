"""Make the embedded model and its problems: `python -m benchmarks.embedded_model.build`. Minutes on two cores, seeded.

Writes `tiny/` (a Hugging Face folder), `train.jsonl`, `heldout.jsonl` and `report.json`.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2Tokenizer

import r3env.assets
from benchmarks.embedded_model.arithmetic import MAX_TOTAL, REFLECTION_GUIDANCE, Chain, hint_levels, random_chain
from benchmarks.embedded_model.lessons import RESPONSE_LIMIT, Lesson, Teacher
from benchmarks.embedded_model.report import Question, measure

ASSETS = Path(r3env.assets.__file__).parent
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


NUMBERS = [str(number) for number in range(10, MAX_TOTAL + 1)]
SIGNED = [f"{sign}{digit}" for sign in "+-" for digit in range(10)]
WORDS = [*NUMBERS, *SIGNED, "\\boxed{", REFLECTION_GUIDANCE]


def build_tokenizer(words: Sequence[str] = WORDS) -> Qwen2Tokenizer:
    """Build byte-level BPE without merges, and added tokens.

    The class is Qwen2's own, and the extra tokens are added ones: for a Qwen2 model `AutoTokenizer` brings Qwen2's
    pre-tokenizer whatever the saved file says, and added tokens are matched before it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, END, *ROLES, *alphabet])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLES),
        model_max_length=1024,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


CHOICES = {"four_choice": 4, "ten_choice": 10}
LEFT = 3  # operations of a fill-in


def variants(problem: str, answer: str) -> dict[str, dict[str, str]]:
    """Make all forms of a sum; each has the sum's own answer."""
    forms = {name: choice(problem, answer, count) for name, count in CHOICES.items()} | {"fill_in": fill_in(problem)}
    return {name: {"problem": text, "answer": answer} for name, text in forms.items()}


def choice(problem: str, answer: str, count: int) -> str:
    """Pose a sum with `count` numbers of which one is its answer, the same ones every time."""
    rng = random.Random(f"{problem} {count}")
    wrong = [number for number in range(MAX_TOTAL + 1) if number != int(answer)]
    offered = [int(answer), *rng.sample(wrong, count - 1)]
    rng.shuffle(offered)
    return f"{problem}\nOne of {', '.join(map(str, offered))}."


def fill_in(problem: str) -> str:
    """Pose the rest of a sum after all but the last operations."""
    numbers = re.findall(r"[+-]?\d+", problem)
    done = max(1, len(numbers) - LEFT)
    return f"{sum(map(int, numbers[:done]))}{''.join(numbers[done:])}"


LENGTHS = range(5, 17)
TRAINING_PER_LENGTH, HELD_OUT_PER_LENGTH = 16, 10
LESSONS = (
    Lesson(500, range(2, 6), reflection=0.0, ways=(0.4, 0.5, 0.1)),
    Lesson(500, range(2, 9), reflection=0.4, ways=(0.3, 0.5, 0.2)),
    Lesson(400, range(3, 14), reflection=0.4, ways=(0.2, 0.5, 0.3)),
)
ROWS, LEARNING_RATE, WARM_UP, DECAY_FROM = 20, 2e-3, 50, 0.6


def maker_arguments(description: str | None, seed: int) -> argparse.Namespace:
    """Read what the makers of models are asked for, with a default seed, and set PyTorch up by it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=ASSETS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=seed)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    return arguments


def main() -> None:
    """Make everything and print the report."""
    arguments = maker_arguments(__doc__, seed=0)
    arguments.out.mkdir(parents=True, exist_ok=True)

    training, held_out = make_problems(arguments.seed)
    write_problems(arguments.out / "train.jsonl", training, help=True)
    write_problems(arguments.out / "heldout.jsonl", held_out)
    tokenizer = build_tokenizer()
    model = new_model(tokenizer)
    teacher = Teacher(tokenizer, {str(chain) for chain in held_out}, arguments.seed)
    warm_start(model, [(lesson.steps, teacher.batches(lesson, ROWS)) for lesson in LESSONS])
    model.save_pretrained(arguments.out / "tiny")
    tokenizer.save_pretrained(arguments.out / "tiny")
    questions = [Question(str(chain), str(chain.answer), len(chain.terms) + 1) for chain in held_out]
    report = measure(model, tokenizer, questions, RESPONSE_LIMIT)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def make_problems(seed: int) -> tuple[list[Chain], list[Chain]]:
    """Make training and held-out problems, all different, equally many of each length."""
    rng = random.Random(seed)
    per_length = TRAINING_PER_LENGTH + HELD_OUT_PER_LENGTH
    training, held_out = [], []
    for length in LENGTHS:
        chains: dict[str, Chain] = {}
        while len(chains) < per_length:
            chain = random_chain(rng, length)
            chains[str(chain)] = chain
        drawn = list(chains.values())
        training += drawn[:TRAINING_PER_LENGTH]
        held_out += drawn[TRAINING_PER_LENGTH:]
    return training, held_out


def write_problems(path: Path, chains: list[Chain], *, help: bool = False) -> None:
    """Write one JSON object per line: uid, problem, answer, level (how many numbers), optionally hints and variants."""
    with path.open("w", encoding="utf-8") as file:
        for index, chain in enumerate(chains):
            length = len(chain.terms) + 1
            row: dict[str, Any] = {
                "uid": f"{path.stem}-{index:03d}",
                "problem": str(chain),
                "answer": str(chain.answer),
                "level": str(length),
            }
            if help:
                row |= {"hints": hint_levels(chain), "variants": variants(row["problem"], row["answer"])}
            file.write(json.dumps(row) + "\n")


def new_model(
    tokenizer: Qwen2Tokenizer, *, hidden_size: int = 128, layers: int = 4, heads: int = 4, intermediate_size: int = 384
) -> Any:
    """Return a small Qwen2 with random weights."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        intermediate_size=intermediate_size,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def warm_start(model: Any, lessons: Sequence[tuple[int, Iterator[tuple[torch.Tensor, ...]]]]) -> None:
    """Train the model by supervised learning on the lessons, for this many steps of batches each, one after another."""
    optimizer = adamw(model)
    total, step, started = sum(steps for steps, _ in lessons), 0, time.monotonic()
    model.train()
    for steps, batches in lessons:
        for _ in range(steps):
            decay = (total - step) / (total * (1 - DECAY_FROM))
            rate = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP, max(0.05, decay))
            loss = learn(model, optimizer, next(batches), rate)
            step += 1
            if step % 50 == 0:
                elapsed = time.monotonic() - started
                left = elapsed / step * (total - step)
                print(
                    f"warm start {step}/{total}  loss {loss:.3f}  {elapsed:.0f} s, {left:.0f} s left",
                    flush=True,
                )
    model.eval()


def adamw(model: Any) -> torch.optim.Optimizer:
    """Make the optimizer of supervised learning."""
    return torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))


def learn(model: Any, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...], rate: float) -> float:
    """Take one step on a batch of `fill_rows`; returns the cross-entropy of its responses."""
    optimizer.param_groups[0]["lr"] = rate
    tokens, labels, positions, mask = batch
    hidden = model.get_decoder()(input_ids=tokens, position_ids=positions, attention_mask=mask)
    targets = labels[:, 1:]
    chosen = targets != -100
    logits = model.get_output_embeddings()(hidden.last_hidden_state[:, :-1][chosen])
    loss = torch.nn.functional.cross_entropy(logits, targets[chosen])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()

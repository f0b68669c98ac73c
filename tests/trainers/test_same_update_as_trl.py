"""The same stored rollouts through TRL's loss and ours: loss and gradient are equal, but for rounding, in ten steps."""

import numpy as np
import pytest
import torch

from algorithms.learner.attention import try_packed_attention, try_shared_prompts
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from r3env import chat
from r3env.envs.constraints import ConstraintsEnv

pytest.importorskip("trl")

STEPS, GROUPS, SIZE = 10, 2, 4
FORWARD, LOSS = ForwardSettings(token_budget=1024), LossSettings(importance_cap=0.0)


def stored_rollouts(model, tokenizer):
    """Rows of two prompts with answers of unlike lengths, and their log-probs under the model before the first step."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    queries = list(ConstraintsEnv("train#seed=0,size=2").load_queries().values())
    rows = []
    for query in queries:
        prompt = chat.first_turn(tokenizer, [{"role": "user", "content": query.problem}])
        advantages = rng.normal(size=SIZE)
        sampled = model.generate(
            torch.tensor([prompt]), do_sample=True, min_new_tokens=20, max_new_tokens=20, num_return_sequences=SIZE
        )
        for advantage, sequence in zip((advantages - advantages.mean()) / advantages.std(), sampled, strict=True):
            tokens = sequence.numpy()[: len(prompt) + rng.integers(3, 20)].astype(np.int32)
            mask = np.arange(len(tokens)) >= len(prompt)
            rows.append(TrainingSample(tokens, mask, float(advantage)))
    weight = 1 / sum(row.response_length for row in rows)  # the mean over all tokens, TRL's `dapo`
    old = [logprobs for logprobs, _ in score(model, rows, FORWARD, entropy=False)]
    return [
        TrainingSample(row.tokens, row.loss_mask, row.advantages, weight, logprobs, logprobs)
        for row, logprobs in zip(rows, old, strict=True)
    ]


def trl_inputs(rows):
    """The same rows as TRL takes them: prompts padded on the left, completions on the right."""
    parts = [(row.tokens[~row.loss_mask], row.tokens[row.loss_mask]) for row in rows]
    widths = [max(map(len, side)) for side in zip(*parts, strict=True)]
    made = {name: torch.zeros(len(rows), widths[place], dtype=torch.long) for place, name in enumerate(("p", "c"))}
    masks = {name: torch.zeros_like(tensor) for name, tensor in made.items()}
    old = torch.zeros(len(rows), widths[1])
    for number, (prompt, completion) in enumerate(parts):
        left, right = slice(widths[0] - len(prompt), None), slice(len(completion))
        for name, place, tokens in (("p", left, prompt), ("c", right, completion)):
            made[name][number, place] = torch.from_numpy(tokens.astype(np.int64))
            masks[name][number, place] = 1
        old[number, : len(completion)] = torch.from_numpy(rows[number].old_logprobs)
    return {
        "prompt_ids": made["p"],
        "prompt_mask": masks["p"],
        "completion_ids": made["c"],
        "completion_mask": masks["c"],
        "advantages": torch.tensor([row.advantages for row in rows], dtype=torch.float32),
        "old_per_token_logps": old,
        "num_items_in_batch": masks["c"].sum(),
    }


def make_trainer(model, tokenizer, folder):
    """TRL's trainer with the settings that ours have."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        beta=0.0,
        epsilon=LOSS.clip_low,
        epsilon_high=LOSS.clip_high,
        loss_type="dapo",
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def test_loss_and_gradient_are_trls_in_ten_steps(tmp_path):
    folder = resolve_model("embedded:tiny")
    ours, theirs = (load_causal_lm(folder, "float32") for _ in range(2))
    tokenizer = load_tokenizer(folder)
    assert not try_packed_attention(ours) and not try_shared_prompts(ours)
    rows = stored_rollouts(ours, tokenizer)
    inputs, trainer = trl_inputs(rows), make_trainer(theirs, tokenizer, tmp_path)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=2e-4)
    clipped = 0.0
    for _ in range(STEPS):
        for model in (ours, theirs):
            model.zero_grad()
        statistics = accumulate_gradients(ours.train(), rows, FORWARD, LOSS)
        loss = trainer._compute_loss(theirs.train(), inputs)
        loss.backward()
        assert statistics.loss == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
        gradients = [torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (ours, theirs)]
        # Float32 sums of gradients that cancel, in another order: differences up to 4e-5 were seen.
        assert torch.linalg.norm(gradients[0] - gradients[1]) <= 1e-4 * torch.linalg.norm(gradients[1])
        clipped += statistics.clipped
        optimizer.step()
        theirs.load_state_dict(ours.state_dict())  # AdamW would enlarge what rounding leaves between the two
    assert clipped > 0  # ratios left the range, on both sides of which the gradients are compared

"""The training command, with the stand-in as its algorithm, which kills itself and its children before a step.

python -m tests.trackers.tracked_run STEP ARGUMENT …; step 0: it is never killed.
"""

import os
import signal
import sys
from dataclasses import dataclass

from algorithms.train import checkpoints, loop, recorder
from algorithms.train.main import main
from tests.runs.stand_in import StandIn, load, save


@dataclass(frozen=True)
class Rollout:
    """What trackers see of a rollout."""

    messages: tuple[dict[str, str], ...]
    uid: str = "a"
    context: str = "plain"
    reward: float = 1.0
    verdict: str = "equal"


def conversations(groups, count, tokenizer):
    """Two conversations, with all that a table may trip over."""
    texts = ['4, "four"\n<b>é', "\udc80"]
    turns = [({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": text}) for text in texts]
    return [Rollout(messages) for messages in turns][:count]


class GRPO(StandIn):
    """The stand-in; its reward tells the steps apart."""

    last = 0

    def train(self):
        if self.steps_done + 1 == self.last:
            print("killed", flush=True)
            os.killpg(0, signal.SIGKILL)
        result = super().train()
        self.batch.record["reward/mean"] = self.steps_done / 8
        return result


if __name__ == "__main__":
    GRPO.last = int(sys.argv[1])
    loop._build = lambda config, seed: GRPO(config)
    recorder.sample_conversations = conversations
    loop.load_checkpoint, checkpoints.save_checkpoint = load, save
    sys.exit(main("grpo", sys.argv[2:]))

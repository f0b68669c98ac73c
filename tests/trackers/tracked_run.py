"""The training command, with the stand-in as its algorithm, which kills itself and its children before a step.

python -m tests.trackers.tracked_run STEP ARGUMENT …; step 0: it is never killed.
"""

import os
import signal
import sys

from algorithms.train import checkpoints, loop
from algorithms.train.main import main
from tests.runs.stand_in import StandIn, load, save


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
    loop.load_checkpoint, checkpoints.save_checkpoint = load, save
    sys.exit(main("grpo", sys.argv[2:]))

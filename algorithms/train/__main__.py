"""`python -m algorithms.train ALGORITHM`, which `python -m algorithms.grpo` and `python -m algorithms.r3_grpo` call."""

import sys

from algorithms.train.main import run_and_leave

if __name__ == "__main__":
    run_and_leave(sys.argv[1], sys.argv[2:])

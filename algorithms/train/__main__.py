"""`python -m algorithms.train ALGORITHM`, what `python -m algorithms.grpo` and `python -m algorithms.r3_grpo` call."""

import sys

from algorithms.train.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

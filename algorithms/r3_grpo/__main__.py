"""`python -m algorithms.r3_grpo`."""

import sys

from algorithms.script.main import main

if __name__ == "__main__":
    sys.exit(main("r3_grpo"))

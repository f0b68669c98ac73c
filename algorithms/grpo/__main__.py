"""`python -m algorithms.grpo`."""

import sys

from algorithms.script.main import main

if __name__ == "__main__":
    sys.exit(main("grpo"))

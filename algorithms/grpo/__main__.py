"""`python -m algorithms.grpo` is `python -m algorithms.train grpo`."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "grpo")
    runpy.run_module("algorithms.train", run_name="__main__", alter_sys=True)

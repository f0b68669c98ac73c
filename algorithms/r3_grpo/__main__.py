"""`python -m algorithms.r3_grpo` is `python -m algorithms.train r3_grpo`."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "r3_grpo")
    runpy.run_module("algorithms.train", run_name="__main__", alter_sys=True)

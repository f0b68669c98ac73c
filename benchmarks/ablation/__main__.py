"""`python -m benchmarks.ablation`."""

import sys

from benchmarks.ablation.command import main

if __name__ == "__main__":
    sys.exit(main())

"""Time float32 products with a language model's weights: by `algorithms.models.products` against PyTorch's own.

    python -m benchmarks.products
    python -m benchmarks.products --threads 1

The shapes are those of SmolLM2-135M: feed-forward layers and output head, at the rows of decoding and of an update.
Of five times the fastest counts.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.table import Table
from torch.nn import functional

from algorithms.models.products import linear, uses_onednn
from benchmarks.record import add_record_option, show

HIDDEN, WIDE, VOCABULARY = 576, 1536, 49_152
SHAPES = ((64, HIDDEN, WIDE), (64, WIDE, HIDDEN), (64, HIDDEN, VOCABULARY), (512, HIDDEN, WIDE), (2048, HIDDEN, WIDE))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=None, help="threads of torch; default: its own")
    add_record_option(parser)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    table = Table(title=f"GFLOP/s, {torch.get_num_threads()} threads", title_justify="left")
    for column in ("rows", "weight", "PyTorch's", "ours", "ratio"):
        table.add_column(column, justify="right")
    for rows, columns, outputs in SHAPES:
        values, weight = torch.randn(rows, columns), torch.randn(outputs, columns)
        billions = 2 * rows * columns * outputs / 1e9
        theirs, ours = (billions / seconds(partial(product, values, weight)) for product in (functional.linear, linear))
        own = f"{ours:.0f}" if uses_onednn(weight) else "the same"
        table.add_row(str(rows), f"{outputs} × {columns}", f"{theirs:.0f}", own, f"{ours / theirs:.2f}")
    show([table], arguments.record)


@torch.inference_mode()
def seconds(product: Callable[[], torch.Tensor], calls: int = 5) -> float:
    """Return the fastest of five times, each the mean of some calls."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(calls):
            product()
        times.append((time.perf_counter() - began) / calls)
    return min(times)


if __name__ == "__main__":
    main()

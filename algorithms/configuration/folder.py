"""Where the shipped YAML configurations lie."""

from pathlib import Path


def configs_folder() -> Path:
    """Return the folder of the shipped YAML files.

    A wheel carries them inside the package; a checkout, installed or not, keeps them at its root.

    Raises:
        FileNotFoundError: neither place has them.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if any(folder.glob("*.yaml")):
            return folder
    raise FileNotFoundError(
        f"no configurations in {package / 'configs'} or {package.parent / 'configs'}: reinstall r3-grpo"
    )


def training_files() -> list[Path]:
    """The shipped files that say how to train; those called `eval_*` are for `python -m algorithms.evaluate`."""
    return sorted(file for file in configs_folder().glob("*.yaml") if not file.name.startswith("eval_"))


def evaluation_files() -> list[Path]:
    """The shipped files for `python -m algorithms.evaluate`."""
    return sorted(configs_folder().glob("eval_*.yaml"))

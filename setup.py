"""Everything else stands in pyproject.toml; only the move of configs/ into `algorithms` needs code."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["algorithms", "algorithms.*", "r3env", "r3env.*"]),
        "algorithms.configs",
    ],
    package_dir={"algorithms.configs": "configs"},
)

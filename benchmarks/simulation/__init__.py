"""Simulated env runners, many to a process, behind the project's own driver; see benchmarks.scale."""

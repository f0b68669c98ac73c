"""Grading of mathematical answers; start at `grader.py`."""

from r3env.grading.grader import MAX_ANSWER_CHARS, GraderError, close, grade, same_value, statistics

__all__ = ["MAX_ANSWER_CHARS", "GraderError", "close", "grade", "same_value", "statistics"]

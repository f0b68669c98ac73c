"""A reward that responses of any model differ in."""


def variety(response: str, answer: str) -> float:
    """The share of different letters: hardly two responses have the same."""
    letters = [letter for letter in response.lower() if letter.isalpha()]
    return len(set(letters)) / 26

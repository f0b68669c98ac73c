"""The one error of reports."""


class ReportError(ValueError):
    """A folder that no report can be made of; one line that names the file and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

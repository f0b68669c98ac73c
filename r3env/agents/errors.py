"""The error of a refused request of an agent."""


class RequestError(Exception):
    """A request that is refused.

    Args:
        message: one line, with the fix.
        param: the field that is wrong.
        status: of HTTP.
        code: for programs.
    """

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

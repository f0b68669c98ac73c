"""Upload a folder to the Hugging Face Hub, with its own client; HF_ENDPOINT names another server."""

from pathlib import Path

from algorithms.utils.errors import InputError

CARD = "README.md"


class PublishError(InputError):
    """The Hub cannot be reached, or refuses; the message is one line with the fix."""


def check_name(repo: str) -> None:
    """Check the name of a repository.

    Raises:
        PublishError: the Hub has no such names.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        reason = str(error).splitlines()[0]
        raise PublishError(f"--push: {repo!r} cannot name a repository ({reason}); fix: USER/NAME") from error


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit to a model repository, which is made if it is not there; returns its address.

    Args:
        folder: what to upload.
        repo: `USER/NAME`, or `NAME` for one of the user that is logged in.
        private: whether a new repository can be seen by its owner alone.
        message: of the commit.

    Raises:
        PublishError: not logged in, no right to write there, no connection, or the upload failed.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=address.repo_id, commit_message=message)
    except Exception as error:  # the client's errors have no base in common
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = f"fix: hf auth login with a token that may write, then: hf upload {repo} {folder}"
        raise PublishError(f"--push: {repo}: {reason}; the export is in {folder}; {fix}") from error
    return str(address)

"""One stored response, and its bytes on disk."""

import math
import zlib
from dataclasses import dataclass

import numpy as np

# uid, context, reward, correct, truncated, step, text, feedback
Row = tuple[bytes, bytes, float, bool, bool, int, bytes, bytes]

SEQUENCES = {"tokens": np.int32, "loss_mask": np.bool_, "old_logprobs": np.float32}


class DamagedEntryError(ValueError):
    """The stored bytes of a response are damaged."""


@dataclass(frozen=True, eq=False)
class ReplayEntry:
    """One stored response, with all that is needed to train on it again.

    Compared by identity. Arrays are brought to the dtypes below.

    Args:
        uid: the query.
        context: the name of what the response was conditioned on.
        tokens: int32 [T], its own full prompt (a quoted attempt included) and all turns.
        loss_mask: bool [T], True on tokens that the policy wrote.
        old_logprobs: float32 [L], the trainer's of the policy's tokens when the response was sampled.
        reward: the outcome reward, never a ranking reward.
        correct: verified.
        truncated: hit the length limit.
        step: training step that sampled it.
        text: the last turn, for the environment and for people; empty where it is what the tokens decode to.
        feedback: the environment's on the last turn.

    Raises:
        ValueError: the arrays are not 1-D and of fitting lengths, or a log-prob or the reward is not finite.
    """

    uid: str
    context: str
    tokens: np.ndarray
    loss_mask: np.ndarray
    old_logprobs: np.ndarray
    reward: float
    correct: bool
    truncated: bool
    step: int
    text: str = ""
    feedback: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", str(self.context))
        for name, dtype in SEQUENCES.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        shapes = [self.tokens.shape, self.loss_mask.shape, self.old_logprobs.shape]
        if shapes[0] != shapes[1] or self.tokens.ndim != 1 or shapes[2] != (np.count_nonzero(self.loss_mask),):
            raise ValueError(f"tokens and loss_mask must be [T], old_logprobs [L] on the mask, got {shapes}")
        if not (np.isfinite(self.old_logprobs).all() and math.isfinite(self.reward)):
            raise ValueError(f"an entry of query {self.uid!r} has a log-prob or a reward that is not finite")

    @property
    def response_tokens(self) -> np.ndarray:
        """int32 [L], the policy's tokens over all turns."""
        return np.asarray(self.tokens[self.loss_mask])

    @property
    def prompt_length(self) -> int:
        """Tokens before the policy's first one."""
        return int(self.loss_mask.argmax()) if self.loss_mask.any() else len(self.tokens)


def row_of(entry: ReplayEntry) -> Row:
    """Return what is stored of an entry besides its sequences, as it is read again."""
    return (
        entry.uid.encode("utf-8", "surrogatepass"),
        entry.context.encode(),
        float(entry.reward) + 0.0,  # SQLite keeps no sign of a zero
        bool(entry.correct),
        bool(entry.truncated),
        int(entry.step),
        entry.text.encode("utf-8", "surrogatepass"),
        entry.feedback.encode("utf-8", "surrogatepass"),
    )


def pack(entry: ReplayEntry) -> bytes:
    """Pack the sequences of an entry into bytes without loss: narrow tokens, one bit per mask, log-probs on the mask.

    Ends with a checksum of them and of its row, so that a page that rotted on disk is noticed when it is read.
    """
    length = len(entry.tokens)
    wide = length > 0 and int(entry.tokens.view(np.uint32).max()) > 0xFFFF  # a negative one is large without its sign
    body = b"".join(
        [
            np.array([length, wide], np.uint32).tobytes(),
            entry.tokens.astype(np.int32 if wide else np.uint16).tobytes(),
            np.packbits(entry.loss_mask).tobytes(),
            entry.old_logprobs.tobytes(),
        ]
    )
    return body + _checksum(row_of(entry), body).to_bytes(4, "little")


def unpack(packed: bytes, row: Row) -> dict[str, np.ndarray]:
    """Give back `tokens`, `loss_mask` and `old_logprobs`, as `pack` got them.

    Raises:
        DamagedEntryError: the bytes, or the row beside them, are not what they were when `pack` wrote them.
    """
    body, stored = packed[:-4], int.from_bytes(packed[-4:], "little")
    # Of the sequences alone: what was written before the row counted.
    if len(packed) < 12 or stored not in (_checksum(row, body), zlib.crc32(body)):
        raise DamagedEntryError("its checksum differs")
    length, wide = (int(number) for number in np.frombuffer(body, np.uint32, count=2))
    dtype: type = np.int32 if wide else np.uint16
    mask_at = 8 + length * np.dtype(dtype).itemsize
    logprobs_at = mask_at + (length + 7) // 8
    tokens = np.frombuffer(body, dtype, count=length, offset=8).astype(np.int32)
    mask = np.unpackbits(np.frombuffer(body[mask_at:logprobs_at], np.uint8), count=length).astype(bool)
    logprobs = np.frombuffer(body, np.uint8, offset=logprobs_at).view(np.float32)
    return {"tokens": tokens, "loss_mask": mask, "old_logprobs": logprobs}


def _checksum(row: Row, body: bytes) -> int:
    uid, *values, text, feedback = row
    values_and_text = zlib.crc32(text, zlib.crc32(repr(values).encode(), zlib.crc32(uid)))
    return zlib.crc32(body, zlib.crc32(feedback, values_and_text))

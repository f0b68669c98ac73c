"""The embedded model's tokenizer: bytes, so that any text can be written, and numbers and signed digits as tokens."""

from collections.abc import Sequence

from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Tokenizer

from r3env.assets.arithmetic import MAX_TOTAL, REFLECTION_GUIDANCE

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


NUMBERS = [str(number) for number in range(10, MAX_TOTAL + 1)]
SIGNED = [f"{sign}{digit}" for sign in "+-" for digit in range(10)]
WORDS = [*NUMBERS, *SIGNED, "\\boxed{", REFLECTION_GUIDANCE]


def build_tokenizer(words: Sequence[str] = WORDS) -> Qwen2Tokenizer:
    """Build byte-level BPE without merges, and added tokens.

    The class is Qwen2's own, and the extra tokens are added ones: for a Qwen2 model `AutoTokenizer` brings Qwen2's
    pre-tokenizer whatever the saved file says, and added tokens are matched before it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, END, *ROLES, *alphabet])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLES),
        model_max_length=1024,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

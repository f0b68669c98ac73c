"""Chat templates that behave as those of the families that people train, on a tokenizer that is made on the spot.

Written for the tests: each has what its family is documented to do with turns, system text and reasoning, and no tools.
"""

from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# Reasoning is left out of turns before the last question, and put in front of the answer after it;
# enable_thinking=false begins the answer with empty reasoning.
QWEN3 = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set answer = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set thoughts = m.content.split('<think>')[-1].split('</think>')[0].strip('\\n') %}
{%- if '</think>' not in m.content %}{% set thoughts = '' %}{% endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last %}{{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}{% endif %}
{{- answer + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

# A system turn in any case, with the date; contents are trimmed.
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

# No system role: its text is put before the first user turn's. Roles must alternate.
GEMMA3 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
{%- set prefix = messages[0].content + '\\n\\n' %}{% set messages = messages[1:] %}
{%- else %}{% set prefix = '' %}
{%- endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}
{%- endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (prefix if loop.first else '') }}
{{- m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"""

# As the first two Gemmas: a system turn is an error.
GEMMA2 = GEMMA3.replace("{%- set prefix", "{{ raise_exception('System role not supported') }}{%- set prefix")

# System text stands alone in front; reasoning is left out of earlier turns, and opened for the answer.
R1 = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}
{%- elif m.role == 'user' %}{{- '<｜User｜>' + m.content }}
{%- else %}{{- '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{% endif %}"""

# Messages in channels. Only a last turn shows its analysis, and ends with another token; the system text is the
# developer's.
GPT_OSS = """\
{%- if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}
{{- '<|start|>system<|message|>Reasoning: ' + reasoning_effort + '<|end|>' }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- '<|start|>developer<|message|># Instructions\\n\\n' + m.content + '<|end|>' }}
{%- elif m.role == 'user' %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- elif '<|channel|>' in m.content %}{{ raise_exception('channels belong into the field thinking') }}
{%- elif loop.last and not add_generation_prompt %}
{%- if m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """A template, and what belongs to it.

    Args:
        template: of the chat.
        end: what a policy of this family writes at the end of its turn.
        bos: whether the template writes the tokenizer's first token.
        variables: some that the template reads.
        response: one with reasoning, as the policy writes it after the generation prompt; without its end.
        answer: what of it the template shows of an earlier turn.
        text: of the whole response, for an environment.
    """

    template: str
    end: str
    bos: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    response: str = "It is 5."
    answer: str = "It is 5."
    text: str = "It is 5."


THOUGHT = "<think>\n2 and 3.\n</think>\n\nIt is 5."
FAMILIES = {
    "qwen3": Family(QWEN3, "<|im_end|>", False, {"enable_thinking": False}, THOUGHT, text=THOUGHT),
    "llama3": Family(LLAMA3, "<|eot_id|>", variables={"date_string": "1 Jan 2026"}),
    "gemma3": Family(GEMMA3, "<end_of_turn>"),
    "deepseek-r1": Family(
        R1,
        "<｜end▁of▁sentence｜>",
        response="2 and 3.\n</think>\n\nIt is 5.",
        answer="\n\nIt is 5.",
        text="2 and 3.\n</think>\n\nIt is 5.",
    ),
    "gpt-oss": Family(
        GPT_OSS,
        "<|return|>",
        False,
        {"reasoning_effort": "high"},
        "<|channel|>analysis<|message|>2 and 3.<|end|><|start|>assistant<|channel|>final<|message|>It is 5.",
        text=THOUGHT,
    ),
}
# As their tokenizers have it: marks of thinking are added tokens that are not special.
_SPECIAL = [
    *("<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
]


def make_tokenizer(template: str | None) -> Any:
    """Make a byte-level tokenizer with few merges, which puts `<bos>` before a text as Llama's and Gemma's do."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("i", "s"), (".", "Ċ"), ("Ċ", "Ċ"), ("I", "t"), ("Ġ", "5")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    inner.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    from tokenizers.processors import TemplateProcessing

    bos = inner.token_to_id("<bos>")
    inner.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    made: Any = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>")
    made.chat_template = template
    return made


def encode(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text, control tokens where it spells them, and no others around it."""
    return list(tokenizer.encode(text, add_special_tokens=False))

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model folder: a token a letter, tied embeddings, 512 positions."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    letters = [chr(code) for code in range(32, 127)] + ["\n", "<eos>", "<unk>"]
    raw = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(letters),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems in a file."""
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(f'{{"problem": "{n}+{n}", "answer": "{2 * n}"}}\n' for n in (1, 2, 30)))
    return file


ENVIRONMENT = '''
import gymnasium
from r3env.core import Query, Reason, VerifiableEnv, Verdict

class Echo(VerifiableEnv):
    """Takes no constructor argument at all."""
    def __init__(self):
        super().__init__()
    def load_queries(self):
        return [Query("a", "say a", "a"), Query("b", "say b", "b")]
    def verify(self, query, response):
        return Verdict(response == query.answer, Reason.DIFFERENT)

gymnasium.register(id="Echo-v0", entry_point="{module}:Echo")
gymnasium.register(id="NoText-v0", entry_point="{module}:gymnasium.Env")
'''


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module that registers `Echo-v0`."""
    (tmp_path / "own_env.py").write_text(ENVIRONMENT.replace("{module}", "own_env"))
    (tmp_path / "broken_env.py").write_text("raise OSError('no\\nlicence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_env"

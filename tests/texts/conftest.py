"""Small models of the ``transformers`` library with a tokenizer, made here and saved, for there is
no network.
"""

import csv
import random
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the extra `text` is not installed")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("datasets", reason="the extra `text` is not installed")

WORDS = "good fine bad awful film plot actor music a the was is very not so".split()
VOCABULARY = {word: code for code, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}
SMALL = {"vocab_size": len(VOCABULARY), "bos_token_id": 2, "eos_token_id": 2}


def _models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=8, max_position_embeddings=32, **sizes
    )
    gpt2 = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=32, **SMALL)
    return {"bert": transformers.BertModel(bert), "gpt2": transformers.GPT2LMHeadModel(gpt2)}


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folders ``bert`` (without a head) and ``gpt2``."""
    folder = tmp_path_factory.mktemp("pretrained")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    marks = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]"}
    for name, model in _models().items():
        model.save_pretrained(folder / name)
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks).save_pretrained(
            folder / name
        )
    return folder


def rows() -> list[dict[str, str]]:
    """Reviews of four people, in two classes."""
    draw = random.Random(0)
    made = []
    for k in range(64):
        mood = draw.choice(("up", "down"))
        said = [
            *draw.choices(WORDS[4:], k=draw.randint(1, 5)),
            draw.choice(WORDS[:2] if mood == "up" else WORDS[2:4]),
        ]
        made.append({"who": f"user{k % 4}", "review": " ".join(said), "mood": mood})
    return made


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    file = tmp_path / "reviews.csv"
    with open(file, "w", newline="") as opened:
        writer = csv.DictWriter(opened, ("who", "review", "mood"))
        writer.writeheader()
        writer.writerows(rows())
    return file

"""A language model of random weights that is quick, reads words, and has every part that a backend looks at."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<end>", "<system>", "<user>", "<assistant>"]
WORDS = [f"w{i}" for i in range(195)]
END = SPECIAL.index("<end>")
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] == 'w0' %}{{ raise_exception('no w0') }}{% endif %}"
    "<{{ m['role'] }}> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer_of_words(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
    tokenizer.chat_template = template
    return tokenizer


def llama(context: int = 256, vocabulary: int = 200) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, initializer_range=0.5, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip


def save(folder: Path, config: PreTrainedConfig | None = None, ends: int | list[int] = END, seed: int = 0) -> Path:
    """Write a model with its tokeniser of words in the format of transformers, and return its folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config or llama())
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    tokenizer_of_words().save_pretrained(folder)
    return folder

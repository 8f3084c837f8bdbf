"""A model folder for clients: a small LLaMA without weights, and a tokenizer that is trained here."""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCABULARY = 1024
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 704,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": None,
}


def text(lines: int) -> list[str]:
    """Return sentences of made-up words, the same every time."""
    draw = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(2000)]
    return [" ".join(draw.choices(words, k=12)) + "." for _ in range(lines)]


def make(folder: Path) -> None:
    """Write it."""
    # Slow to import, and not needed for --help.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text(3000), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


def as_in_a_cache(folder: Path, home: Path, name: str) -> None:
    """Put it where a cache of Hugging Face at `home` would have NAME: offline, aiperf takes no path."""
    cached = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = cached / "snapshots" / "made-here"
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(snapshot.name)

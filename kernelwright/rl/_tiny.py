"""Small untrained models: a policy over schedules, and a writer of bytes. Both run on a CPU.

torch and transformers are imported only when a model is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernelwright.agents import CARD, END, PolicyCard, word_of
from kernelwright.agents.policy_words import GO, PAD, START, UNKNOWN
from kernelwright.errors import MissingToolError
from kernelwright.records import KnobValue

HIDDEN: Final = 64
POSITIONS: Final = 128  # most words of a problem and its schedule
_POWERS: Final = {"nodes": 8, "bytes": 34, "intensity": 12}
_HALVES: Final = {"rows": 48, "columns": 40}  # in half powers of two
_BYTE_POSITIONS: Final = 4096
_CHAT: Final = (
    "{% for m in messages %}<bos>{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant:{% endif %}"
)


def require_training() -> None:
    """Raise MissingToolError if packages that training needs are missing."""
    import importlib.util

    missing = [name for name in ("trl", "transformers", "peft", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingToolError(
            f"training needs {' and '.join(missing)}", hint="pip install 'kernelwright[rl]'", missing=missing
        )


def choices_of(spaces: Iterable[Mapping[str, Sequence[KnobValue]]]) -> dict[str, list[KnobValue]]:
    """Every choice of the spaces with all its values, in the order in which they first occur."""
    found: dict[str, list[KnobValue]] = {}
    for space in spaces:
        for choice, values in space.items():
            known = found.setdefault(choice, [])
            known += [value for value in values if repr(value) not in map(repr, known)]
    return found


def vocabulary_of(descriptions: Iterable[Sequence[str]], choices: Mapping[str, Sequence[KnobValue]]) -> tuple[str, ...]:
    """The words of a policy: those of the problems it is trained on, every size, and every choice."""
    special = (PAD, UNKNOWN, START, GO, END)
    seen = {word for words in descriptions for word in words if not word.startswith("?")} - set(special)
    powers = {f"{name}~{power}" for name, most in _POWERS.items() for power in range(most)}
    powers |= {f"{name}~{half / 2:g}" for name, most in _HALVES.items() for half in range(most)}
    asked = [f"?{choice}" for choice in choices]
    answers = [word_of(choice, value) for choice, values in choices.items() for value in values]
    return (*special, *sorted(seen | powers), *asked, *answers)


def schedule_model(vocabulary: Sequence[str], hidden: int = HIDDEN) -> tuple[Any, Any]:
    """An untrained policy over schedules and its tokenizer: two layers, four heads, a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(vocab={word: n for n, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=vocabulary.index(PAD),
        eos_token_id=vocabulary.index(END),
        bos_token_id=vocabulary.index(START),
    )
    return LlamaForCausalLM(config), tokenizer


def legal_model(folder: Path) -> Any:
    """A saved policy that gives probability to legal schedules alone, and leans to the default.

    The k-th word after the last word of a problem answers its k-th choice, and after the last choice comes the end. So
    a policy has no grammar to learn, and its entropy is that of legal schedules alone. A policy that was first taught
    the grammar, on random schedules, had learned from that to ignore the words of problems.
    """
    import torch
    from transformers import LlamaForCausalLM

    card = PolicyCard.model_validate_json((folder / CARD).read_text(encoding="utf-8"))
    vocabulary = card.vocabulary
    leaning = torch.tensor([card.lean * (word in card.defaults) for word in vocabulary])
    go, end = vocabulary.index(GO), vocabulary.index(END)
    asks = torch.tensor([word.startswith("?") for word in vocabulary])
    answers = torch.zeros(len(vocabulary), len(vocabulary), dtype=torch.bool)  # (word that asks, answer)
    for place, word in enumerate(vocabulary):
        if word.startswith("?"):
            answers[place] = torch.tensor([one.startswith(f"{word[1:]}=") for one in vocabulary])

    class LegalPolicy(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, logits_to_keep: int = 0, **rest: Any) -> Any:
            found = super().forward(input_ids=input_ids, logits_to_keep=0, **rest)
            logits = (found.logits + leaning).masked_fill(~self._legal(input_ids), torch.finfo(found.logits.dtype).min)
            found.logits = logits[:, -logits_to_keep:] if logits_to_keep else logits
            return found

        @staticmethod
        def _legal(ids: Any) -> Any:
            """A mask of shape (rows, words, vocabulary): the words that may follow each word."""
            asked = asks[ids]
            count = asked.sum(1)
            order = torch.argsort((~asked).to(torch.int8), dim=1, stable=True)
            queries = torch.gather(ids, 1, order)  # in each row, the words that ask come first, in order
            began = torch.cumsum((ids == go).long(), dim=1)
            done = torch.cumsum(began, dim=1) - 1  # words written after the last word of the problem
            next_one = torch.gather(queries, 1, done.clamp(0, ids.shape[1] - 1))
            legal = answers[next_one].clone()
            over = done >= count[:, None]
            legal[over] = False
            legal[..., end] |= over
            legal[began == 0] = True
            return legal

    model = LegalPolicy.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.use_cache = False  # the mask depends on all words
    model.config.use_cache = False
    return model


def save_policy(folder: Path, model: Any, card: PolicyCard) -> None:
    """Save a policy in the form that :class:`kernelwright.agents.PolicyModel` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # greedy or sampled: the caller decides
    (folder / CARD).write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")


def byte_model(hidden: int = HIDDEN) -> tuple[Any, Any]:
    """An untrained model that reads and writes bytes, and its tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for name in ("<pad>", "<eos>", "<bos>"):
        vocabulary[name] = len(vocabulary)
    words = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", padding_side="left"
    )
    tokenizer.chat_template = _CHAT
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_BYTE_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    return Qwen2ForCausalLM(config), tokenizer

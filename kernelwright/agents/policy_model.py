"""A small transformer that is loaded from a folder and run with numpy, so a policy does not need torch.

The folder has the files that ``transformers`` saves for a ``LlamaForCausalLM`` in float32 (``config.json`` and
``model.safetensors``), and a ``policy.json``. The architecture is Llama's (H. Touvron et al.,
arXiv:2302.13971): RMS normalisation before each block, rotary positions, gated SiLU, tied embeddings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationError

from kernelwright.agents.policy_words import UNKNOWN
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Record, sha256_text

if TYPE_CHECKING:
    import numpy as np

CARD = "policy.json"
MOST_BYTES: Final = 64 << 20  # of weights: a schedule policy is not larger
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_LAYER = (
    ("input_layernorm", ("hidden",)),
    ("self_attn.q_proj", ("hidden", "hidden")),
    ("self_attn.k_proj", ("hidden", "hidden")),
    ("self_attn.v_proj", ("hidden", "hidden")),
    ("self_attn.o_proj", ("hidden", "hidden")),
    ("post_attention_layernorm", ("hidden",)),
    ("mlp.gate_proj", ("wide", "hidden")),
    ("mlp.up_proj", ("wide", "hidden")),
    ("mlp.down_proj", ("hidden", "wide")),
)


class PolicyCard(Record):
    """The description of a schedule policy.

    Attributes:
        backend: the language of the kernels whose schedules it writes.
        vocabulary: its words; a word's index is its token.
        reward: the reward formula of its training.
        problems: ids of the training problems.
        held_out: ids of the held-out problems.
        verdicts: number of the referee's verdicts that it learned from, each counted once.
        environment: the environment of those verdicts.
        seed: random seed of the training.
        defaults: the words for the generator's own choices.
        lean: added to the logits of ``defaults``, so that a policy without knowledge of a problem chooses them.
    """

    format: Literal[1] = 1
    backend: Backend = "cpp"
    vocabulary: tuple[str, ...] = Field(min_length=8, max_length=8192)
    reward: str = ""
    problems: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    verdicts: int = 0
    environment: str = ""
    seed: int = 0
    defaults: tuple[str, ...] = ()
    lean: float = Field(default=0.0, ge=0.0, le=10.0)


class _Shape(Record):
    """The fields of ``config.json`` that the arithmetic depends on."""

    hidden: int = Field(ge=8, le=1024)
    wide: int = Field(ge=8, le=8192)
    layers: int = Field(ge=1, le=32)
    heads: int = Field(ge=1, le=64)
    theta: float = Field(gt=1.0)
    epsilon: float = Field(gt=0.0, lt=1.0)
    positions: int = Field(ge=16, le=65536)


class PolicyModel:
    """Next-word probabilities of a schedule policy.

    Attributes:
        card: its description.
        digest: hash of its weights.
    """

    def __init__(self, card: PolicyCard, shape: _Shape, weights: Mapping[str, np.ndarray], digest: str = "") -> None:
        self.card = card
        self.digest = digest
        self._shape = shape
        self._weights = weights
        self._token = {word: place for place, word in enumerate(card.vocabulary)}
        self._leaning = [self._token[word] for word in card.defaults]

    @classmethod
    def load(cls, folder: Path) -> PolicyModel:
        """Read a policy's folder. Nothing in it is executed.

        Raises:
            UsageError: the folder has no policy, or a damaged one.
        """
        try:
            card = PolicyCard.model_validate_json((folder / CARD).read_text(encoding="utf-8"))
            if UNKNOWN not in card.vocabulary or len(set(card.vocabulary)) < len(card.vocabulary):
                raise ValueError(f"its vocabulary has a word twice, or lacks {UNKNOWN}")
            if not set(card.defaults) <= set(card.vocabulary):
                raise ValueError("a default is not in its vocabulary")
            shape = _shape_of(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
            data = _read_bounded(folder / _WEIGHTS)
            weights = _tensors(data)
            _require(weights, shape, len(card.vocabulary))
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"{folder} is no schedule policy: {said}",
                hint="'kernelwright rl train --method grpo --model tiny --output DIR' makes one",
                folder=str(folder),
            ) from error
        return cls(card, shape, weights, sha256_text(data))

    def knows(self, word: str) -> bool:
        """Whether a word is in the vocabulary."""
        return word in self._token

    def tokens(self, words: Sequence[str]) -> list[int]:
        """A token for each word; all unknown words share one token."""
        unknown = self._token[UNKNOWN]
        return [self._token.get(word, unknown) for word in words]

    def log_probabilities(self, words: Sequence[str], allowed: Sequence[str]) -> list[float]:
        """The log probability of each allowed word to come next, normalised over the allowed words.

        Raises:
            UsageError: the policy knows none of the allowed words, or there are more words than it has positions.
        """
        import numpy as np

        known = [self._token[word] for word in allowed if word in self._token]
        if not known or len(words) > self._shape.positions:
            missing = "has too many words" if known else f"needs {allowed[0]!r}, which this policy has no word for"
            raise UsageError(f"the problem {missing}", hint="train a policy with this version")
        logits = self.logits(words)
        least = float(np.max(logits[known]))
        total = least + math.log(sum(math.exp(float(logits[token]) - least) for token in known))
        return [float(logits[self._token[word]]) - total if word in self._token else -math.inf for word in allowed]

    def logits(self, words: Sequence[str]) -> np.ndarray:
        """(vocabulary,) float32: the logits of the word after ``words``."""
        import numpy as np

        shape, weights = self._shape, self._weights
        embedded = weights["model.embed_tokens.weight"]
        x = embedded[self.tokens(words)]
        turned = _rotations(len(words), shape.hidden // shape.heads, shape.theta)
        for layer in range(shape.layers):
            at = f"model.layers.{layer}."
            x = x + self._attend(_normed(x, weights[f"{at}input_layernorm.weight"], shape.epsilon), at, turned)
            y = _normed(x, weights[f"{at}post_attention_layernorm.weight"], shape.epsilon)
            gate = y @ weights[f"{at}mlp.gate_proj.weight"].T
            up = y @ weights[f"{at}mlp.up_proj.weight"].T
            x = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights[f"{at}mlp.down_proj.weight"].T
        last = _normed(x[-1:], weights["model.norm.weight"], shape.epsilon)
        logits = (last @ embedded.T)[0]
        logits[self._leaning] += self.card.lean
        return np.asarray(logits)

    def _attend(self, x: np.ndarray, at: str, turned: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Causal attention; x: (words, hidden)."""
        import numpy as np

        count, heads = len(x), self._shape.heads
        size = self._shape.hidden // heads

        def projected(name: str) -> np.ndarray:
            flat = x @ self._weights[f"{at}self_attn.{name}.weight"].T
            return np.asarray(flat.reshape(count, heads, size).swapaxes(0, 1))

        query, key, value = projected("q_proj"), projected("k_proj"), projected("v_proj")
        query, key = _turn(query, turned), _turn(key, turned)
        scores = query @ key.swapaxes(1, 2) / math.sqrt(size)
        scores = np.where(np.tril(np.ones((count, count), dtype=bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ value).swapaxes(0, 1).reshape(count, heads * size)
        return np.asarray(mixed @ self._weights[f"{at}self_attn.o_proj.weight"].T)


def _normed(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    import numpy as np

    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight)


def _rotations(count: int, size: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, (count, size) each, of J. Su et al., arXiv:2104.09864; the halves of a head turn together."""
    import numpy as np

    rates = theta ** (-np.arange(0, size, 2, dtype=np.float32) / size)
    angles = np.outer(np.arange(count, dtype=np.float32), np.concatenate((rates, rates)))
    return np.asarray(np.cos(angles)), np.asarray(np.sin(angles))


def _turn(x: np.ndarray, turned: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    import numpy as np

    cosines, sines = turned
    half = x.shape[-1] // 2
    return np.asarray(x * cosines + np.concatenate((-x[..., half:], x[..., :half]), axis=-1) * sines)


def _shape_of(config: Mapping[str, Any]) -> _Shape:
    """The shape in a configuration. Raises ValueError for an architecture that this module cannot compute."""
    rope = config.get("rope_parameters") or {}
    shape = _Shape(
        hidden=config["hidden_size"],
        wide=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        theta=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
        epsilon=config["rms_norm_eps"],
        positions=config["max_position_embeddings"],
    )
    same = {
        "model_type": "llama",
        "num_key_value_heads": shape.heads,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    }
    for name, wanted in same.items():
        if config.get(name, wanted) != wanted:
            raise ValueError(f"{name} is {config[name]!r}, and must be {wanted!r}")
    if rope.get("rope_type", "default") != "default" or shape.hidden % (2 * shape.heads):
        raise ValueError("its positions are of another kind")
    return shape


def _read_bounded(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} has more than {MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def _tensors(data: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, all float32. The file is a length, a JSON header, and the data."""
    import numpy as np

    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError(f"{_WEIGHTS} is cut off")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
        if entry["dtype"] != "F32" or not 0 <= first <= last <= len(body) or last - first != 4 * math.prod(shape):
            raise ValueError(f"{_WEIGHTS}: {name} is damaged, or not float32")
        tensors[name] = np.frombuffer(body, dtype="<f4", count=math.prod(shape), offset=first).reshape(shape)
    return tensors


def _require(weights: Mapping[str, np.ndarray], shape: _Shape, words: int) -> None:
    """Raise ValueError unless every tensor is present, finite, and of the right size."""
    import numpy as np

    sizes = {"hidden": shape.hidden, "wide": shape.wide}
    wanted = {"model.embed_tokens.weight": (words, shape.hidden), "model.norm.weight": (shape.hidden,)}
    for layer in range(shape.layers):
        for name, named in _LAYER:
            wanted[f"model.layers.{layer}.{name}.weight"] = tuple(sizes[one] for one in named)
    for name, size in wanted.items():
        if name not in weights or weights[name].shape != size:
            raise ValueError(f"{name} is missing, or not of shape {size}")
        if not np.isfinite(weights[name]).all():
            raise ValueError(f"{name} has values that are not finite")

"""Models that learn to write kernels, and their supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kernelwright.errors import UsageError
from kernelwright.rl._demonstrations import Demonstration, demonstrations, require_weights, split
from kernelwright.rl._plan import TINY
from kernelwright.rl._tiny import byte_model
from kernelwright.rl._trl import Course, Watch, common_arguments, ending, train

MODEL: Final = "model"
_PLAIN_CHAT: Final = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_TINY_TOKENS: Final = 1024  # most tokens of a demonstration for the tiny model


class Writer(NamedTuple):
    """A model that writes text, and its tokenizer."""

    model: Any
    tokenizer: Any


def writer_of(course: Course) -> Writer:
    """The initial model of a training. Code in a model's folder is never run.

    Raises:
        UsageError: the folder holds no model that can be loaded.
    """
    import torch

    plan = course.plan
    torch.manual_seed(plan.seed)
    if plan.model == TINY:
        return Writer(*byte_model())
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = require_weights(plan.model)
    on_cpu = not torch.cuda.is_available()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32 if on_cpu else torch.bfloat16,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{plan.model} cannot be loaded: {str(error).splitlines()[0]}", hint="name a folder that transformers saved"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _PLAIN_CHAT
    return Writer(model, tokenizer)


def adapters(course: Course) -> Any:
    """The LoRA adapters to train (E. Hu et al., arXiv:2106.09685); None to train the whole model."""
    plan = course.plan
    if plan.model == TINY or not plan.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=plan.lora_rank,
        lora_alpha=2 * plan.lora_rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


class Imitated(NamedTuple):
    """The result of fine-tuning, with the mean loss per token on held-out demonstrations before and after it.

    The losses are None if nothing is held out.
    """

    demonstrations: int
    held_out: int
    loss_before: float | None
    loss_after: float | None


def imitate(course: Course) -> Imitated:
    """Fine-tune a model on demonstrations. The loss is on the answers alone.

    Raises:
        UsageError: there are no demonstrations, or all of them are on held-out problems.
    """
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    plan = course.plan
    learned, held = split(demonstrations(plan.data), plan.held_out)
    if not learned:
        raise UsageError("every demonstration is on a problem that is held out", hint="hold fewer problems out")
    writer = writer_of(course)
    watch = Watch(course)

    def log(step: int, logs: Mapping[str, float]) -> None:
        if "loss" in logs:
            row = {"step": step, "seconds": round(watch.seconds, 3), "loss": round(float(logs["loss"]), 5)}
            course.progress.add(row)
            course.tell(f"step {step}: loss {row['loss']:.3f}")

    longest = _TINY_TOKENS if plan.model == TINY else plan.completion_tokens
    arguments = {
        **common_arguments(course),
        "per_device_train_batch_size": plan.prompts,
        "per_device_eval_batch_size": plan.prompts,
        "max_length": longest,
        "completion_only_loss": True,
        "eos_token": writer.tokenizer.eos_token,
    }
    rows = _rows([_shortened(one, longest, writer.tokenizer) for one in learned])
    held_rows = _rows([_shortened(one, longest, writer.tokenizer) for one in held]) if held else None
    trainer = SFTTrainer(
        model=writer.model,
        processing_class=writer.tokenizer,
        train_dataset=rows,
        eval_dataset=held_rows,
        args=SFTConfig(**arguments),
        peft_config=adapters(course),
        callbacks=[ending(course, watch, log)],
    )
    trainer.remove_callback(PrinterCallback)
    before = float(trainer.evaluate()["eval_loss"]) if held else None
    train(course, trainer)
    after = float(trainer.evaluate()["eval_loss"]) if held else None
    save_writer(course, trainer, writer.tokenizer)
    return Imitated(len(learned), len(held), before, after)


def save_writer(course: Course, trainer: Any, tokenizer: Any) -> None:
    """Save the model with its adapters merged, so that it loads on its own."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.save_pretrained(course.folder / MODEL)
    tokenizer.save_pretrained(course.folder / MODEL)


def _rows(found: Sequence[Demonstration]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(
        [
            {
                "prompt": [message.model_dump() for message in one.prompt],
                "completion": [message.model_dump() for message in one.completion],
            }
            for one in found
        ]
    )


def _shortened(one: Demonstration, most: int, tokenizer: Any) -> Demonstration:
    """A demonstration whose prompt leaves room for its answer: the beginning of a long prompt is dropped.

    Otherwise an example longer than the model's limit would be cut at its end, which is the answer.
    """
    answer = sum(len(tokenizer(message.content)["input_ids"]) for message in one.completion)
    room = max(most // 4, most - min(answer, most // 2) - 64)
    messages = []
    for message in reversed(one.prompt):
        tokens = tokenizer(message.content)["input_ids"]
        kept = tokens[-room:] if room > 0 else []
        content = message.content if len(kept) == len(tokens) else tokenizer.decode(kept, skip_special_tokens=True)
        messages.append(message.model_copy(update={"content": content}))
        room -= len(kept)
    return one.model_copy(update={"prompt": tuple(message for message in reversed(messages) if message.content)})

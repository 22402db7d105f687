"""GRPO with TRL, paid by a reward server: start ``kernelwright rl serve`` first.

    python examples/rl/trl_grpo.py --problem kernelwright/level1/softmax --model Qwen/Qwen2.5-Coder-0.5B-Instruct

With ``--turns`` above 1, the policy is told what the referee measured and writes again; an episode then earns Kevin's
discounted return.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelwright.rl import RemoteScorer
from kernelwright.rl.adapters.trl import episode_return, reward_function, rollout_function, rows


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8775", help="the reward server")
    parser.add_argument("--token-file", type=Path, help="holds the server's token")
    parser.add_argument("--problem", dest="problems", action="append", required=True, help="repeatable")
    parser.add_argument("--backend", choices=["cpp", "triton", "cuda"], default="cpp")
    parser.add_argument("--model", default="Qwen/Qwen2.5-Coder-0.5B-Instruct", help="a name or a folder")
    parser.add_argument("--turns", type=int, default=1, help="kernels in an episode")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--generations", type=int, default=8, help="of each prompt, in one group")
    parser.add_argument("--max-tokens", type=int, default=4096, help="of one answer")
    parser.add_argument("--out", default="rl-out", help="folder of checkpoints")
    return parser.parse_args(words)


def main(asked: argparse.Namespace) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    token = asked.token_file.read_text().split()[-1] if asked.token_file else None
    scorer = RemoteScorer(asked.url, token=token)
    data = rows(asked.problems, asked.backend)
    if asked.turns > 1:
        paid = {
            "reward_funcs": [episode_return],
            "rollout_func": rollout_function(scorer, data, turns=asked.turns, backend=asked.backend),
        }
    else:
        paid = {"reward_funcs": [reward_function(scorer)]}
    trainer = GRPOTrainer(
        model=asked.model,
        train_dataset=Dataset.from_list(data),
        args=GRPOConfig(
            output_dir=asked.out,
            max_steps=asked.steps,
            num_generations=asked.generations,
            per_device_train_batch_size=asked.generations,
            max_completion_length=asked.max_tokens,
            learning_rate=2e-6,
            temperature=0.9,
            beta=0.0,  # no KL term, as Kevin has none
            epsilon=0.2,
            epsilon_high=0.28,
            max_grad_norm=0.05,
            report_to="none",
            logging_steps=1,
        ),
        **paid,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(arguments())

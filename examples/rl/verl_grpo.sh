#!/usr/bin/env bash
# GRPO with verl, paid by a reward server that runs already: kernelwright rl serve.
# Run it from the project's root, where verl is installed; what follows its name overrides the launch file.
#   examples/rl/verl_grpo.sh trainer.n_gpus_per_node=1 data.train_batch_size=2
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ -f train.parquet ] || python "$folder/verl_data.py" train.parquet kernelwright/level1/softmax

# verl's own defaults are looked for beside its entry point, which --config-path replaces: hence the search path.
exec python -m verl.trainer.main_ppo \
  --config-path "$folder" --config-name verl_grpo \
  "hydra.searchpath=[pkg://verl.trainer.config]" "$@"

# Everything from an empty clone: `make demo`, `make test`. VENV and TORCH_INDEX_URL can be set.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: help setup demo demo-full test test-all test-slowest test-adversarial test-browser test-docker test-gpu test-serve test-ray test-images gpu-proof check format clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: ## install everything that is missing: system packages, virtual environment, dependencies
	@VENV="$(VENV)" PYTHON="$(PYTHON)" exec sh scripts/together.sh sh scripts/setup.sh

demo: setup ## a few minutes: optimise two problems, replay one that a language model wrote, check a Triton kernel
	@$(BIN)/python scripts/demo.py

demo-full: setup ## the same with ten problems and two recorded ones: a quarter of an hour, more where it is busy
	@$(BIN)/python scripts/demo.py --full

test: setup ## run the quick tests, and a share of slow ones and of each matrix that moves on with the commit
	@$(BIN)/python scripts/run_tests.py

test-all: setup ## run the whole test suite
	@$(BIN)/python scripts/run_tests.py --whole

test-slowest: setup ## run the test suite, and write down the slowest tests
	@$(BIN)/python scripts/run_tests.py --slowest benchmarks/results/slowest_tests.txt --durations tests/durations.json

test-adversarial: setup ## every attack, with and without the screen, in every sandbox that can be started here
	@KERNELWRIGHT_KILLS=200 $(BIN)/python -m pytest -m "not docker" tests/adversarial tests/evaluator/test_referee_kills.py \
		--ignore tests/adversarial/test_untimed.py
	@KERNELWRIGHT_TEST_SANDBOX=process $(BIN)/python -m pytest -m "" tests/adversarial/test_attacks.py
	@KERNELWRIGHT_TEST_SANDBOX=docker scripts/with_docker.sh $(BIN)/python -m pytest -m "" tests/adversarial/test_attacks.py

test-browser: setup ## the leaderboard's pages, driven in a headless Chromium (which apt installs where it is missing)
	@VENV="$(VENV)" sh scripts/setup_browser.sh
	@$(BIN)/python -m pytest -m browser tests/browser tests/leaderboard

test-docker: setup ## the container sandbox, on an engine of its own (root; docker.io or podman)
	@scripts/with_docker.sh $(BIN)/python -m pytest -rs -m docker tests/sandbox/test_sandbox_docker.py

test-serve: setup ## the client of language models against a server of others: transformers serve, with a tiny model
	@$(BIN)/python -c 'import fastapi, transformers, uvicorn' 2>/dev/null || \
		$(BIN)/python -m pip --quiet install --constraint constraints.txt --editable '.[rl,web]'
	@$(BIN)/python -m pytest -m serve tests/agents/test_served_model.py

test-ray: setup ## the seats of a real Ray cluster, on this machine
	@$(BIN)/python -c 'import ray' 2>/dev/null || \
		$(BIN)/python -m pip --quiet install --constraint constraints.txt --editable '.[ray]'
	@$(BIN)/python -m pytest -m ray tests/campaign/test_pool_ray.py

test-images: setup ## the container images, built and run on an engine of its own (root; debootstrap without a registry)
	@scripts/with_docker.sh $(BIN)/python -m pytest -rs -m docker tests/test_images.py

test-gpu: ## what needs a GPU, in MINUTES=8; without one it ends with 3. GPU_PYTHON: an interpreter with torch for CUDA
	@if [ -z "$(GPU_PYTHON)" ]; then $(MAKE) --no-print-directory setup; fi
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" KERNELWRIGHT_TEST_MINUTES=$(MINUTES) \
		$(or $(GPU_PYTHON),$(BIN)/python) scripts/test_gpu.py $(TESTS) || exit $$?

gpu-proof: ## what a GPU says of the referee, in MINUTES=6; without one it says so. GPU_PYTHON as above; PROOF="--step S"
	@if [ -z "$(GPU_PYTHON)" ]; then $(MAKE) --no-print-directory setup; fi
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(or $(GPU_PYTHON),$(BIN)/python) -m kernelwright.cli doctor --prove-gpu \
		--minutes $(or $(MINUTES),6) --output $(or $(OUTPUT),proof.json) $(PROOF) || exit $$?

check: setup ## formatting, lint, strict types, direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_architecture.py

format: setup ## apply formatting and safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info demo-output

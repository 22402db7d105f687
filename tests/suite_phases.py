"""Says which tests run side by side, which two at a time, and which need the machine for themselves.

``make test`` runs three phases, one after another (``scripts/run_tests.py``):

- Most tests run side by side.
- Those marked ``limits`` meet a sandbox's limits of time and memory, or look for what is left behind on the machine.
  They lie in ``LIMITS``, and run two at a time.
- Those marked ``alone`` really time something. They lie in ``ALONE``, or judge with a real referee, and run one after
  another. Those marked ``untimed`` judge with a real referee in the first phase: they time nothing, and fail where they
  try to.
"""

from __future__ import annotations

LIMITS = (
    "adversarial/test_host.py",
    "evaluator/test_referee_kills.py",
    "evaluator/test_rest.py",
    "rl/test_naive.py",
    "sandbox",
)
# Of ``LIMITS``, those that meet none.
PURE = (
    "sandbox/test_sandbox_messages.py",
    "sandbox/test_sandbox_messages_properties.py",
    "sandbox/test_sandbox_seccomp.py",
)
ALONE = (
    "cli/test_cli_real.py",
    "evaluator/test_gpu_proof.py",
    "evaluator/test_own_share.py",
    "mcp/test_mcp_timed.py",
    "rl/test_serve_real.py",
    "submissions/test_submissions_real.py",
)
# Fixtures of these names judge with a real referee where they are defined in these rooms; elsewhere they are fakes.
FIXTURES = frozenset({"referee", "judges"})
ROOMS_OF_REFEREES = ("adversarial", "evaluator", "gpu", "prompts")
# Where the tests of the later phases lie: these phases need not collect the others.
PLACES = {"limits": LIMITS, "alone": (*ALONE, *ROOMS_OF_REFEREES)}

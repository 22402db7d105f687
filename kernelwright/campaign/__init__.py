"""Many problems at once: order, budgets, stops, resumption; and the Python interface over them."""

from __future__ import annotations

from kernelwright.campaign._api import (
    evaluate,
    export_text,
    language_of,
    load_drop_in,
    optimize,
    read_candidate,
    write_atomically,
)
from kernelwright.campaign._archive import ArchiveMade, make_archive, right_kernels
from kernelwright.campaign._attempts import ProblemFault, fault_of
from kernelwright.campaign._campaign import Campaign, problems_of, rows_of, run_config
from kernelwright.campaign._compare import Comparison, ProblemPair, Side, compare_runs
from kernelwright.campaign._dispatch import DispatchMade, make_dispatch
from kernelwright.campaign._estimate import Estimate, RoleEstimate, estimate
from kernelwright.campaign._ledger import duplicates_of, verifier_record
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._memory import ProblemMemory, RunMemory, library_of
from kernelwright.campaign._paired import Mean, Measured, Paired, paired_means
from kernelwright.campaign._recipes import Recipe, load_recipe, recipe_names, with_recipe
from kernelwright.campaign._recordings import record_run
from kernelwright.campaign._results import CampaignEvent, CampaignResult, RankedKernel, RunResult
from kernelwright.campaign._rounds import RoundSummary, rounds_of
from kernelwright.campaign._sample_results import SamplePlan
from kernelwright.campaign._sampling import Sampler, benches, find_bench, plan_of
from kernelwright.campaign._searched import (
    ArmRow,
    Elite,
    IslandView,
    SearchView,
    languages_of,
    make_search,
    searches_of,
)
from kernelwright.campaign._sessions import OpenReferee, Sessions, once_more, open_local_referee
from kernelwright.campaign._stopping import StopWatch, stop_on_signals
from kernelwright.campaign._tune import Tuner
from kernelwright.campaign._tune_results import CostModelUse, TunedSetting, TunePlan, TuneResult
from kernelwright.campaign._variants import EVERY, at_variant, at_variants, device_class_of

__all__ = [
    "EVERY",
    "ArchiveMade",
    "ArmRow",
    "Campaign",
    "CampaignEvent",
    "CampaignResult",
    "Comparison",
    "CostModelUse",
    "DispatchMade",
    "Elite",
    "Estimate",
    "IslandView",
    "Mean",
    "Measured",
    "OpenReferee",
    "Paired",
    "ProblemFault",
    "ProblemMemory",
    "ProblemPair",
    "RankedKernel",
    "Recipe",
    "RoleEstimate",
    "RoundSummary",
    "RunLock",
    "RunMemory",
    "RunResult",
    "SamplePlan",
    "Sampler",
    "SearchView",
    "Sessions",
    "Side",
    "StopWatch",
    "TunePlan",
    "TuneResult",
    "TunedSetting",
    "Tuner",
    "at_variant",
    "at_variants",
    "benches",
    "compare_runs",
    "device_class_of",
    "duplicates_of",
    "estimate",
    "evaluate",
    "export_text",
    "fault_of",
    "find_bench",
    "language_of",
    "languages_of",
    "library_of",
    "load_drop_in",
    "load_recipe",
    "make_archive",
    "make_dispatch",
    "make_search",
    "once_more",
    "open_local_referee",
    "optimize",
    "paired_means",
    "plan_of",
    "problems_of",
    "read_candidate",
    "recipe_names",
    "record_run",
    "right_kernels",
    "rounds_of",
    "rows_of",
    "run_config",
    "searches_of",
    "stop_on_signals",
    "verifier_record",
    "with_recipe",
    "write_atomically",
]

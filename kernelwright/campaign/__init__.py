"""Runs over many problems: their order, budgets, stops and resumption. Also the Python interface to them."""

from __future__ import annotations

from kernelwright.campaign._results import CampaignEvent, CampaignResult, RunResult
from kernelwright.campaign._sample_results import SamplePlan
from kernelwright.campaign._tune import Tuner
from kernelwright.campaign.api import evaluate, export_text, language_of
from kernelwright.campaign.benches import Sampler, find_bench, plan_of
from kernelwright.campaign.campaign import Campaign, run_config
from kernelwright.campaign.compare import compare_runs
from kernelwright.campaign.paired import Mean
from kernelwright.campaign.recipe import load_recipe, with_recipe
from kernelwright.campaign.runs import rows_of
from kernelwright.campaign.searched import Elite, languages_of, searches_of
from kernelwright.campaign.variants import device_class_of

__all__ = [
    "Campaign",
    "CampaignEvent",
    "CampaignResult",
    "Elite",
    "Mean",
    "RunResult",
    "SamplePlan",
    "Sampler",
    "Tuner",
    "compare_runs",
    "device_class_of",
    "evaluate",
    "export_text",
    "find_bench",
    "language_of",
    "languages_of",
    "load_recipe",
    "plan_of",
    "rows_of",
    "run_config",
    "searches_of",
    "with_recipe",
]

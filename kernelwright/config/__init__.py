"""Configuration: one frozen :class:`Settings` object, built once and passed on; nothing else reads the environment."""

from __future__ import annotations

from kernelwright.config.environment import api_key, debug_enabled, keys_present
from kernelwright.config.measurement import Measurement
from kernelwright.config.settings import CAPTURED, NAMES, Settings
from kernelwright.config.tables import Endpoint
from kernelwright.config.values import parse_bytes

__all__ = [
    "CAPTURED",
    "NAMES",
    "Endpoint",
    "Measurement",
    "Settings",
    "api_key",
    "debug_enabled",
    "keys_present",
    "parse_bytes",
]

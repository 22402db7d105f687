"""The command line over a fake referee, in a process of its own: ``python cli_fake_main.py ARGS``.

With ``KW_TEST_HOLD`` set to two file descriptors "R,W", judging ``v1`` says so on W and waits for a byte on R.
"""

from __future__ import annotations

import os

from campaign_fakes import FakeReferee, register_scripted_roles

import kernelwright.evaluator
from kernelwright.cli import main


def hold(name: str) -> None:
    if name == "judging v1 False" and "KW_TEST_HOLD" in os.environ:
        read, write = map(int, os.environ["KW_TEST_HOLD"].split(","))
        os.write(write, b"x")
        os.read(read, 1)


register_scripted_roles()
kernelwright.evaluator.Referee = lambda settings: FakeReferee({"v0": 1.1, "v1": 2.0}, point=hold)
main()

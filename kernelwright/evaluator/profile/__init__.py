"""Where a kernel's time goes: tools, their reports, ceilings."""

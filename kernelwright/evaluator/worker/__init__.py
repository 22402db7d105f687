"""The code that runs inside a sandbox. The referee names it by its entry and never imports what runs there."""

"""Rules over a candidate's text, before anything of it runs."""

"""Subcommands ("verbs") of the command-line program `scaling`, such as run, plan, status and report."""

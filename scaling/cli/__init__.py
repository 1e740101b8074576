"""Implement the subcommands (verbs) of the command line `scaling VERB`."""

"""The command-line program `scaling`: a module for each command, such as run, plan, status and report."""

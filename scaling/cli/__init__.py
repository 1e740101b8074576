"""The command-line program `scaling`: a module for each subcommand, such as run, plan, status and report."""

"""Studies compiled for machines that are not here."""

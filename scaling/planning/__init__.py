"""Planning: the study compiled for machines that one does not have, and how long it would take there."""

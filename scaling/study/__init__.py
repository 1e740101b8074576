"""From a configuration to the cases of a study."""

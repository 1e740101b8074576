"""Built-in workloads: functions with their inputs, references and handwritten derivatives."""

"""Built-in workloads: functions to differentiate, their inputs, references and handwritten derivatives."""

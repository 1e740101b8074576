"""Built-in workloads: functions with inputs, references and derivatives by hand, one module each."""

"""The workloads that come with the package, one file each."""

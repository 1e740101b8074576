"""The complete path from a case on one machine to a record."""

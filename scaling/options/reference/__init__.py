"""References for functions without a closed form, and estimates of rounding and step errors."""

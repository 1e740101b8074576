"""References for functions without a closed form."""

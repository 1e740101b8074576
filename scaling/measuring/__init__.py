"""What runs on devices: derivatives as programs, their inputs, the check, the clock. JAX and NumPy alone."""

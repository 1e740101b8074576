"""Planted errors: functions, errors to plant in their derivatives, and the trial that asks the check about both."""

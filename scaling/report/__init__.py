"""What a person sees: the page, figures, terminal, exports and proposal."""

"""What a person looks at: the page, its figures and tables, the terminal, what a proposal and other programs want. No JAX."""

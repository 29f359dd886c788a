"""Pictures of the methods' pages: what each shows is computed by one function and drawn by another."""

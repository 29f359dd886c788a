"""A run's encoder as one file, from raw pixels to embeddings: written, checked, quantised, and used again."""

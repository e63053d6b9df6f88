"""The nouns: frozen dataclasses without I/O (standard library only; `trace` also uses NumPy)."""

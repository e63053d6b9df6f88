"""Engines: adapters that run a pair and count."""

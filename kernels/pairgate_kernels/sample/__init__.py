"""Sampling from logits with the uniforms passed in."""

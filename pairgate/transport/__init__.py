"""Artifacts elsewhere: OCI registries, and OCI layouts of other tools. Nothing read is trusted."""

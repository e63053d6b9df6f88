"""Where things are kept: the registry (SQL), the blobs (OCI image layout) and the traces."""

"""Whether two models can be a pair: read from the files themselves, without loading a model."""

"""The embedded models and their problems: data alone; `benchmarks/embedded_model` in the repository makes them."""

"""The paper's experiments: data, models, one file per study."""

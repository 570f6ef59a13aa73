"""Answer metrics: how good the completions are, where the data set has references."""

"""The language model: loading, prompts, sampling, log-probabilities, and the optimisers that train
on it.
"""

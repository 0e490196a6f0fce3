"""Drafters of the embedded target: the texts they learn from, their training, the checks and assembly of weights."""

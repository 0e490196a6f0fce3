"""draftproof keeps speculative decoding honest in vLLM: still faster, still the same, and where the time goes."""

__version__ = "0.1.0"

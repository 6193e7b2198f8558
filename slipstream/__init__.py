"""Slipstream: a disaggregated prefill/decode serving cluster for large language models."""

__version__ = "0.2.0"

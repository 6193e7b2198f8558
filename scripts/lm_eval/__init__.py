"""lm-eval against a cluster, compared with lm-eval on transformers."""

"""Agents that people use, from their packages and unmodified, in loops with tools against scripted workers."""

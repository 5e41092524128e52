"""Learners: one optimizer step for each fresh batch."""

"""Tuning: alternatives of a plan, measured on the GPU at hand, and what was found, remembered."""

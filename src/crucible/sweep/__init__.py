"""Sweeps: every Problem of a folder fused, proven and raced, with results that survive whatever happens."""

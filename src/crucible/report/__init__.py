"""Reports: what a user gets to see of a Proof."""

"""Races: candidates timed beside what a user would pick instead, against the speed of light of this very GPU."""

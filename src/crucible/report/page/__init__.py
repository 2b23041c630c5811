"""Pages: a record of a run as one self-contained HTML file, and an index of many."""

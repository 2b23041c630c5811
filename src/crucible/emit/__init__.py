"""Plan to text: CUDA functors and launches, and the ModelNew file around them."""

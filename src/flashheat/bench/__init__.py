"""What `flashheat bench` runs: timings with a correctness gate before each."""

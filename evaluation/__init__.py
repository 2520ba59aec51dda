"""What answers are measured by: honesty, calibration, and the benchmarks of the paper."""

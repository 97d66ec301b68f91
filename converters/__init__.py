"""Measured traces in: Kineto (GPU jobs and CPU jobs) and XLA (TPU jobs) to ExecutionGraph."""

"""Measured traces in: Kineto (GPU jobs and CPU jobs) to ExecutionGraph."""

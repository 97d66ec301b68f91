"""ExecutionGraph and Network in, timeline out: the native engine and what it reports."""

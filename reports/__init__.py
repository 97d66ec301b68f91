"""Tables, JSON, CSV and Parquet from results; knows nothing of engines."""

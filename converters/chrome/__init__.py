"""Reading Chrome trace-event JSON, in which PyTorch and XProf both write: files, events, rows."""

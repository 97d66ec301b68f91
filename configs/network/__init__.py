"""Network presets (YAML), each number with its source."""

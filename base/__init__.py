"""Floor of the package: errors, units and progress, used by every other subpackage."""

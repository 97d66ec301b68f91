"""ASTRA-sim: its files, its analytical physics in our own fast form, and its real binary."""

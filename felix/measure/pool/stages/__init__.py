"""The stages of a pool: build, wait for a device, check and time there."""

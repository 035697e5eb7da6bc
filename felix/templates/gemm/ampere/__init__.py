"""Matrix products by mma.sync and cp.async: GPUs of sm_80 and later."""

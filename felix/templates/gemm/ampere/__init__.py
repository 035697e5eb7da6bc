"""Matrix products by cp.async and mma.sync, or threads in float32: GPUs of sm_80 and later."""

"""Matrix products in float32 by fused multiply-adds of threads, without tensor cores."""

"""What a policy would have gained: acceptance traces and a cost model in, speedups out. No engine, no GPU."""

"""Real torchrun, real workers, real signals."""

"""The only folder that imports torch, and only when asked to: what torch's agent is given has torch's own types."""

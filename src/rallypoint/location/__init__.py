"""Where the server of a run is: at a fixed address, or wherever the process is that holds the claim in a register."""

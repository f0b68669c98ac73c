"""The driver's side of remote env runners: who holds what, who is well, and what to play next."""

"""What runs did, as one HTML page that needs nothing else."""

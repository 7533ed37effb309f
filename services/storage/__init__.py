"""What survives a crash: databases, blobs and vector files."""

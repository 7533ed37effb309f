"""What the processes say about themselves: structured, redacting logs."""

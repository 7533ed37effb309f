"""Reports on privacy ledgers, for people."""

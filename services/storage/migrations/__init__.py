"""The schemas' revisions; `env` is what the migration tool runs."""

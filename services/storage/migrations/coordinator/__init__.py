"""The coordinator's revisions."""

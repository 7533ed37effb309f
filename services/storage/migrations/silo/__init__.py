"""A silo's revisions."""

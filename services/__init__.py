"""Processes, sockets, files and people: everything around the protocol that does I/O."""

"""The coordinator process: it relays, sums and plans; it holds no decision of the protocol."""

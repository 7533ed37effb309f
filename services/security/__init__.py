"""Who is at the other end of a connection: certificates, identities, and why TLS fails."""

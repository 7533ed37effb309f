"""What travels between silo, operator and coordinator, and how errors cross the wire."""

"""Federated learning whose coordinator only ever sees sums."""

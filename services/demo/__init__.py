"""`secagg demo`: a whole federation of processes on one machine, on real measurements."""

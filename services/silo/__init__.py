"""The silo process: outbound calls only; its data, keys and masks never leave it in the clear."""

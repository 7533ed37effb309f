"""Differential privacy: plans, noise, accountants, budgets, the ledger and its offline verifier.

Nothing is imported here, so that the verifier loads none of the code that it verifies.
"""

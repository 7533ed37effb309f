"""Privacy arithmetic: plans, accountants, mechanisms and the ledger arrive here in a later release."""

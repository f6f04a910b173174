"""What a process learns of the ledger, and tells its subscribers."""

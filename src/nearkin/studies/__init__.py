"""Many runs that answer one question: rows × seeds → outcomes → one table; and a search over hyper-parameters."""

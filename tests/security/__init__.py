"""Who may do what: each claim of docs/security.md has a test here that tries to break it."""

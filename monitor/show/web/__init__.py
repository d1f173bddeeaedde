"""HTTP: what is read, what is changed (with the token), pages."""

"""The terminal: `status` and rows as text. The server makes them, a command prints them."""

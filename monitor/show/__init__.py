"""What people and programs see: JSON, pages, reports, metrics, the terminal.

All of it is made from one `View` a tick; nothing here decides.
"""

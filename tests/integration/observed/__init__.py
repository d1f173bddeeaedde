"""A real fleet that a monitor in observe mode looks at, and all that reaches it recorded."""

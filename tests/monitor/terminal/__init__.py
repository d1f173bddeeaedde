"""What a person reads on a terminal: whole screens on fixed inputs."""

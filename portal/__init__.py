"""What faces people and agents. Runs without privileges; everything privileged is asked of the engine."""

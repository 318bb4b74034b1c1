"""What all processes share: servers and channels, settings, the fleet, the transfer client."""

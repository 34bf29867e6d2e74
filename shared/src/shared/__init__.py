"""What the papers share."""

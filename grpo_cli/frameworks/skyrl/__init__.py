"""SkyRL."""

"""Files and streams → blocks of lines."""

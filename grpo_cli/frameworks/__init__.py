"""A room per framework: the choices that only it has, and its rows."""

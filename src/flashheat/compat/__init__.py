"""Doors for other people's code: old interfaces on top of ours. They may import everything; nothing imports them."""

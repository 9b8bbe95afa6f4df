"""Model services behind one small interface, which does not depend on Redis or sessions."""

"""What callers pass in: each value is checked here, once, and takes the form in which it travels."""

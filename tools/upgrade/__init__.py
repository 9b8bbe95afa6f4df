"""This release and the previous one on one Redis, while hosts switch between them and everything breaks."""

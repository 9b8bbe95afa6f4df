"""What is released: the wheel, the source, and the pinned packages of the image."""
